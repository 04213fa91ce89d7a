"""What pip would install from a requirements file is what is locked, and hashes are verified."""

from __future__ import annotations

import functools
import hashlib
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from danlu.errors import ChecksumError, DanluError, ResolveError, Span
from danlu.sources.pypi.indexes import read_index_settings
from tests.fakes.wheels import make_wheel, sha256_of
from tests.resolve.resolver import PYLOCK_HEAD, FakeResolveSandbox, PythonResolver

CASES = [
    case
    for case in json.loads(
        (Path(__file__).parents[1] / "sources/requirements_cases.json").read_text()
    )
    if case.get("resolve") or "installs" in case["right"]
]


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A directory and the URL that it is served at."""
    directory = tmp_path / "served"
    directory.mkdir()
    handler = functools.partial(QuietHandler, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield directory, f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


ALGORITHMS = ("md5", "sha1", "sha224", "sha256", "sha384", "sha512")


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("form", ["six @ {}", "{}", "six @ file", "./six"])
def test_the_hash_in_a_url_is_verified(
    resolver: PythonResolver, served: tuple[Path, str], algorithm: str, form: str
) -> None:
    directory, url = served
    local = "file" in form or form.startswith("./")
    wheel = make_wheel(resolver.project if local else directory, "six", "1.16.0")
    digest = hashlib.new(algorithm, wheel.read_bytes()).hexdigest()
    place = {"six @ file": f"six @ {wheel.as_uri()}", "./six": f"./{wheel.name}"}.get(
        form, form.format(f"{url}/{wheel.name}")
    )
    (six,) = resolver(resolver.request(f"{place}#{algorithm}={digest.upper()}"))
    assert six.sha256 == sha256_of(wheel)
    (resolver.project / "r.txt").write_text(f"\n{place}#{algorithm}={'0' * len(digest)}\n")
    with pytest.raises(ChecksumError, match=rf"six-1\.16\.0\S+ does not have the hash {algorithm}"):
        resolver(resolver.request(f"{place}#{algorithm}={'0' * len(digest)}"))
    with pytest.raises(ChecksumError) as caught:
        resolver(resolver.request(requirements="r.txt"))
    assert caught.value.span == Span("r.txt", 2)


@pytest.mark.parametrize(
    "text",
    [
        'dependencies = ["six @ {url}"]\n',
        'dependencies = ["six"]\n[tool.uv.sources]\nsix = {{ url = "{url}" }}\n',
    ],
)
@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_the_hash_in_a_url_of_a_project_is_verified(
    resolver: PythonResolver, served: tuple[Path, str], algorithm: str, text: str
) -> None:
    directory, url = served
    wheel = make_wheel(directory, "six", "1.16.0")
    digest = hashlib.new(algorithm, wheel.read_bytes()).hexdigest()
    file = resolver.project / "pyproject.toml"
    head = '[project]\nname = "mine"\nversion = "1"\n'
    address = f"{url}/{wheel.name}#{algorithm}="
    file.write_text(head + text.format(url=address + digest))
    assert resolver.pins(resolver(resolver.request(pyproject="pyproject.toml"))) == ["six==1.16.0"]
    file.write_text(head + text.format(url=address + "0" * len(digest)))
    with pytest.raises(ChecksumError, match="does not have the hash"):
        resolver(resolver.request(pyproject="pyproject.toml"))


@pytest.mark.parametrize("algorithm", ["md5", "sha256"])
def test_the_hash_in_a_url_that_another_package_requires_is_verified(
    resolver: PythonResolver, served: tuple[Path, str], algorithm: str
) -> None:
    directory, url = served
    six = make_wheel(directory, "six", "1.16.0")
    digest = hashlib.new(algorithm, six.read_bytes()).hexdigest()
    for hash_in_url in (digest, "0" * len(digest)):
        place = f"six @ {url}/{six.name}#{algorithm}={hash_in_url}"
        app = make_wheel(resolver.project, "app", requires=[place])
        if hash_in_url == digest:
            packages = resolver(resolver.request(f"./{app.name}"))
            assert packages[1].sha256 == sha256_of(six)
            continue
        # From the beginning, with the lock of before, and if something else must be built.
        for old in ((), packages):
            with pytest.raises(ChecksumError, match=r"six @ \S+ does not have the hash"):
                resolver(resolver.request(f"./{app.name}"), old)
        (resolver.project / "p").mkdir()
        request = resolver.request(f"./{app.name}", "-e ./p")
        inside = FakeResolveSandbox(f"{place}\n", PYLOCK_HEAD)
        with pytest.raises(ChecksumError, match=r"six @ \S+ does not have the hash"):
            resolver(replace(request, run_in_sandbox=inside))


def test_a_required_path_with_a_hash_is_refused(resolver: PythonResolver) -> None:
    six = make_wheel(resolver.project, "six", "1.16.0")
    app = make_wheel(resolver.project, "app", requires=[f"six @ {six.as_uri()}#md5={'0' * 32}"])
    with pytest.raises(ResolveError, match="not a file on a server"):
        resolver(resolver.request(f"./{app.name}"))


@pytest.mark.parametrize("option", ["", " --hash=sha512:{sha512}"])
def test_one_of_several_hashes_of_a_file_suffices(
    resolver: PythonResolver, served: tuple[Path, str], option: str
) -> None:
    directory, url = served
    wheel = make_wheel(directory, "six", "1.16.0")
    option = option.format(sha512=hashlib.sha512(wheel.read_bytes()).hexdigest())
    (resolver.project / "r.txt").write_text(f"six @ {url}/{wheel.name}#md5={'0' * 32}{option}\n")
    if option:
        (six,) = resolver(resolver.request(requirements="r.txt"))
        assert six.sha256 == sha256_of(wheel)
    else:
        with pytest.raises(ChecksumError):
            resolver(resolver.request(requirements="r.txt"))


def test_the_hash_of_an_archive_is_verified_before_it_is_built(
    resolver: PythonResolver, served: tuple[Path, str]
) -> None:
    directory, url = served
    (directory / "p-1.0.tar.gz").write_bytes(b"archive")
    inside = FakeResolveSandbox("", PYLOCK_HEAD)
    request = resolver.request(f"p @ {url}/p-1.0.tar.gz#sha1={'0' * 40}", line=3)
    with pytest.raises(ChecksumError, match=r"p-1\.0\.tar\.gz does not have the hash") as caught:
        resolver(replace(request, run_in_sandbox=inside))
    assert caught.value.span == Span("build.envd", 3)
    assert inside.mounts == ()


def test_hashes_are_compared_if_something_else_must_be_built(resolver: PythonResolver) -> None:
    make_wheel(resolver.links, "six")
    (resolver.project / "p").mkdir()
    entry = (
        f'{{ url = "https://h/six-1.0-py3-none-any.whl", hashes = {{ sha256 = "{"a" * 64}" }} }}'
    )
    text = f'{PYLOCK_HEAD}\n[[packages]]\nname = "six"\nversion = "1.0"\nwheels = [{entry}]\n'
    (resolver.project / "r.txt").write_text(f"six==1.0 --hash=sha256:{'0' * 64}\n-e ./p\n")
    request = replace(
        resolver.request(requirements="r.txt"),
        run_in_sandbox=FakeResolveSandbox("six==1.0\n", text),
    )
    with pytest.raises(ResolveError, match="does not match any hash in the requirements file"):
        resolver(request)


def test_hashes_in_the_constraints_of_this_machine_are_compared(
    resolver: PythonResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = make_wheel(resolver.links, "six")
    monkeypatch.setenv("PIP_CONSTRAINT", "limits.txt")
    limits = resolver.project / "limits.txt"
    limits.write_text(f"six==1.0 --hash=sha256:{sha256_of(wheel)}\n")
    assert resolver.pins(resolver(resolver.request("six"))) == ["six==1.0"]
    limits.write_text(f"six==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(ResolveError, match="does not match any hash"):
        resolver(resolver.request("six"))


def test_a_repository_with_a_hash_is_refused(resolver: PythonResolver) -> None:
    with pytest.raises(ResolveError, match="only a file has a hash, not a git"):
        resolver(resolver.request(f"p @ git+https://h/p#sha256={'0' * 64}"))


@pytest.mark.parametrize(
    "line",
    [
        'gone @ http://127.0.0.1:9/gone-1-py3-none-any.whl ; platform_system == "Windows"',
        'http://127.0.0.1:9/gone-1-cp311-cp311-win_amd64.whl; sys_platform == "win32"',
        './gone-1-cp311-cp311-win_amd64.whl ; sys_platform == "win32"',
        'gone @ git+https://127.0.0.1:9/gone ; python_version < "3"',
        "-e \"./gone ; python_version < '3'\"",
    ],
)
def test_a_line_whose_marker_is_false_is_neither_fetched_nor_refused(
    resolver: PythonResolver, line: str
) -> None:
    make_wheel(resolver.links, "a")
    (resolver.project / "r.txt").write_text(f"a\n{line}\n")
    assert resolver.pins(resolver(resolver.request(requirements="r.txt"))) == ["a==1.0"]


@pytest.mark.parametrize("form", ["{}; {}", "a @ {};{}", "a @ {} ; {}", "a @ {}; {}"])
def test_a_marker_follows_a_url(
    resolver: PythonResolver, served: tuple[Path, str], form: str
) -> None:
    directory, url = served
    wheel = make_wheel(directory, "a")
    line = form.format(f"{url}/{wheel.name}", 'platform_system == "Linux"')
    assert resolver.pins(resolver(resolver.request(line))) == ["a==1.0"]


def ask_pip(project: Path, links: Path) -> list[str] | str:
    """Return what pip would install from ``requirements.txt``, or its refusal."""
    options = ["--dry-run", "--ignore-installed", "--no-index", "--no-build-isolation", "--quiet"]
    command = [sys.executable, "-m", "pip", "install", *options, "--report", "-"]
    done = subprocess.run(
        [*command, "--find-links", str(links), "-r", "requirements.txt"],
        cwd=project,
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode:
        return done.stderr
    packages = json.loads(done.stdout)["install"]
    return sorted(f"{item['metadata']['name']}=={item['metadata']['version']}" for item in packages)


def write_case(project: Path, case: dict[str, Any]) -> None:
    for name, text in case["files"].items():
        path = project / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text == "@wheel":
            make_wheel(path.parent, "a", "1.0")
        elif isinstance(text, dict):
            path.write_bytes(b"\xff\xfe" + next(iter(text.values())).encode("utf-16-le"))
        else:
            path.write_bytes(text.replace("<byte E9>", "\udce9").encode("utf-8", "surrogateescape"))


@pytest.mark.real
@pytest.mark.parametrize(
    "case",
    [  # tests of the reader have pip's recorded answers to all cases
        pytest.param(case, marks=pytest.mark.slow if number % 5 else (), id=case["name"])
        for number, case in enumerate(CASES)
    ],
)
def test_packages_are_those_of_pip(resolver: PythonResolver, case: dict[str, Any]) -> None:
    for version in ("1.0", "2.0", "3.0rc1"):
        make_wheel(resolver.links, "a", version)
    for version in ("1.0", "2.0"):
        make_wheel(resolver.links, "b", version)
    write_case(resolver.project, case)
    right = ask_pip(resolver.project, resolver.links)
    assert (isinstance(right, str)) == ("refused" in case["right"])
    request = resolver.request(requirements="requirements.txt")
    try:
        named = read_index_settings(None, request.declared, resolver.project)
        links = replace(request.indexes, prereleases=named.prereleases)
        pins = resolver.pins(resolver(replace(request, indexes=links)))
    except DanluError:
        assert isinstance(right, str) or case.get("refused_here")
        return
    assert pins == right
