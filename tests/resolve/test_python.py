"""Requirements resolve to exact files, locked versions stay, errors have the user's line."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from danlu.environment.lock import LockedPackage
from danlu.environment.types import PythonPackages
from danlu.errors import DanluError, OutsideError, ResolveError, Span, UsageError
from danlu.resolve.python import resolver as python_resolver
from danlu.sandbox.types import Mount
from danlu.sources.pypi.indexes import IndexSettings
from danlu.sources.pypi.platform_target import PlatformTarget
from tests.fakes.wheels import make_wheel, sha256_of
from tests.resolve.resolver import PYLOCK_HEAD, FakeResolveSandbox, PythonResolver


def test_requirements_resolve_to_files_with_dependencies(resolver: PythonResolver) -> None:
    app = make_wheel(resolver.links, "My.App", "1.0", requires=["lib>=1"])
    lib = make_wheel(resolver.links, "lib", "2.0")
    assert resolver(resolver.request("my_app")) == (
        LockedPackage("lib", "2.0", "index", lib.name, sha256_of(lib), lib.stat().st_size),
        LockedPackage("my-app", "1.0", "index", app.name, sha256_of(app), app.stat().st_size),
    )


def test_no_requirements_lock_no_packages(resolver: PythonResolver) -> None:
    assert resolver(resolver.request()) == ()


def test_locked_versions_are_kept_when_a_requirement_is_added(resolver: PythonResolver) -> None:
    make_wheel(resolver.links, "a", "1.0")
    old = resolver(resolver.request("a"))
    make_wheel(resolver.links, "a", "2.0")
    make_wheel(resolver.links, "b", "1.0")
    assert resolver.pins(resolver(resolver.request("a", "b"), old)) == ["a==1.0", "b==1.0"]


def test_the_same_question_is_answered_without_asking_again(
    resolver: PythonResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests: list[object] = []
    ask = python_resolver._resolve_with_uv

    async def count_and_ask(*arguments: Any) -> tuple[LockedPackage, ...]:
        requests.append(arguments)
        return await ask(*arguments)

    monkeypatch.setattr(python_resolver, "_resolve_with_uv", count_and_ask)
    for name in ("a", "b"):
        make_wheel(resolver.links, name, "1.0")
    first = resolver(resolver.request("a", "b"))
    assert resolver(resolver.request("b", "a")) == first
    assert len(requests) == 1
    assert resolver(resolver.request("a")) == first[:1]
    assert len(requests) == 2
    resolver(resolver.request("a", "b"), first, upgrade=("a",))
    assert len(requests) == 3
    make_wheel(resolver.links, "a", "2.0")
    assert resolver.pins(resolver(resolver.request("a", "b"))) == ["a==2.0", "b==1.0"]


def test_a_resolution_is_reused_for_ten_minutes(
    resolver: PythonResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(resolver.links, "a", "1.0")
    resolver(resolver.request("a"))
    for path in (resolver.root / "home/cache/resolved").iterdir():
        os.utime(path, (time.time() - 601,) * 2)
    monkeypatch.setattr(python_resolver, "_resolve_with_uv", None)
    with pytest.raises(TypeError):
        resolver(resolver.request("a"))


def test_an_extra_that_does_not_exist_is_reported_with_its_line_every_time(
    resolver: PythonResolver,
) -> None:
    make_wheel(resolver.links, "app", "1.0", requires=["lib[speed]"])
    make_wheel(resolver.links, "lib", "1.0")
    reports: list[str] = []
    request = replace(resolver.request("App[No_Pe]", line=4), report=reports.append)
    warning = (
        "warning: app does not provide the extra 'no-pe'; nothing is installed for it"
        " (build.envd:4)"
    )
    old = resolver(request)
    assert resolver.pins(old) == ["app==1.0", "lib==1.0"]
    assert reports == [warning]
    resolver(request, old)
    assert reports == [warning] * 2


def test_upgrade_selects_newer_versions(resolver: PythonResolver) -> None:
    for name in ("a", "b"):
        make_wheel(resolver.links, name, "1.0")
    old = resolver(resolver.request("a", "b"))
    for name in ("a", "b"):
        make_wheel(resolver.links, name, "2.0")
    request = resolver.request("a", "b")
    assert resolver.pins(resolver(request, old, upgrade=("a",))) == ["a==2.0", "b==1.0"]
    assert resolver.pins(resolver(request, old, upgrade_all=True)) == ["a==2.0", "b==2.0"]


def test_a_locked_version_that_no_longer_fits_changes(resolver: PythonResolver) -> None:
    make_wheel(resolver.links, "a", "1.0")
    old = resolver(resolver.request("a"))
    make_wheel(resolver.links, "a", "2.0")
    assert resolver.pins(resolver(resolver.request("a>=2"), old)) == ["a==2.0"]


@pytest.mark.parametrize(
    ("tag", "target"),
    [
        ("cp311-cp311-manylinux_2_17_aarch64", PlatformTarget("3.11.2", "glibc 2.36", "arm64")),
        ("cp312-cp312-manylinux_2_17_x86_64", PlatformTarget("3.12.4", "glibc 2.36")),
    ],
)
def test_locked_version_is_kept_on_another_target_with_its_wheel(
    resolver: PythonResolver, tag: str, target: PlatformTarget
) -> None:
    make_wheel(resolver.links, "a", "1.0", tag="cp311-cp311-manylinux_2_17_x86_64")
    other = make_wheel(resolver.links, "a", "1.0", tag=tag)
    make_wheel(resolver.links, "b", "1.0")
    old = resolver(resolver.request("a", "b"))
    assert "x86_64" in old[0].file
    make_wheel(resolver.links, "a", "2.0", tag=tag)
    make_wheel(resolver.links, "b", "2.0")
    (result, kept) = resolver(replace(resolver.request("a", "b"), target=target), old)
    assert (result.version, result.file) == ("1.0", other.name)
    assert kept == old[1]


def test_packages_no_longer_required_are_dropped(resolver: PythonResolver) -> None:
    make_wheel(resolver.links, "a", "1.0")
    make_wheel(resolver.links, "b", "1.0")
    old = resolver(resolver.request("a", "b"))
    assert resolver.pins(resolver(resolver.request("b"), old)) == ["b==1.0"]


def test_the_wheel_for_the_target_is_chosen(resolver: PythonResolver) -> None:
    for tag in (
        "cp311-cp311-manylinux_2_28_x86_64",
        "cp312-cp312-manylinux_2_28_x86_64",
        "cp311-cp311-musllinux_1_2_x86_64",
        "cp311-cp311-win_amd64",
        "py3-none-any",
    ):
        make_wheel(resolver.links, "native", tag=tag)
    request = resolver.request("native")
    assert resolver(request)[0].file == "native-1.0-cp311-cp311-manylinux_2_28_x86_64.whl"
    alpine = replace(request, target=PlatformTarget("3.11.9", "musl 1.2"))
    assert resolver(alpine)[0].file == "native-1.0-cp311-cp311-musllinux_1_2_x86_64.whl"


def test_a_local_version_wins_over_the_same_without(resolver: PythonResolver) -> None:
    make_wheel(resolver.links, "torch", "2.13.0")
    make_wheel(resolver.links, "torch", "2.13.0+cpu")
    (one,) = resolver(resolver.request("torch==2.13.0"))
    assert one.version == "2.13.0+cpu"


def test_a_requirements_file_is_read_with_all_it_includes(resolver: PythonResolver) -> None:
    for version in ("1.0", "2.0"):
        make_wheel(resolver.links, "a", version)
    make_wheel(resolver.links, "b", requires=["c"])
    for version in ("1.0", "3.0"):
        make_wheel(resolver.links, "c", version)
    local = make_wheel(resolver.project / "req" / "wheels", "local")
    (resolver.project / "req" / "main.txt").write_text(
        "a ==1.0 ; python_version >= '3.11' # comment\n"
        "never ; sys_platform == 'win32'\n-r more.txt\n-c bounds.txt\n./req/wheels/"
        + local.name
        + "\n"
    )
    (resolver.project / "req" / "more.txt").write_text("b\\\n>=0\n")
    (resolver.project / "req" / "bounds.txt").write_text("c<2\nunused==9\n")
    packages = resolver(resolver.request(requirements="req/main.txt"))
    assert resolver.pins(packages) == ["a==1.0", "b==1.0", "c==1.0", "local==1.0"]
    assert packages[3].source == "local"
    assert packages[3].location == f"req/wheels/{local.name}"


def test_hashes_of_a_requirements_file_are_enforced(resolver: PythonResolver) -> None:
    wheel = make_wheel(resolver.links, "a")
    file = resolver.project / "r.txt"
    file.write_text(f"a==1.0 --hash=sha256:{sha256_of(wheel)}\n")
    assert resolver.pins(resolver(resolver.request(requirements="r.txt"))) == ["a==1.0"]
    file.write_text(f"a==1.0 --hash=sha256:{'0' * 64}\n")
    with pytest.raises(ResolveError, match="does not match any hash"):
        resolver(resolver.request(requirements="r.txt"))


def test_the_dependencies_of_a_project_are_read_without_building_it(
    resolver: PythonResolver,
) -> None:
    make_wheel(resolver.links, "a")
    file = resolver.project / "pyproject.toml"
    file.write_text('[project]\nname = "x"\nversion = "1"\ndependencies = ["a"]\n')
    assert resolver.pins(resolver(resolver.request(requirements="pyproject.toml"))) == ["a==1.0"]
    file.write_text('[project]\nname = "x"\nversion = "1"\ndynamic = ["dependencies"]\n')
    with pytest.raises(ResolveError, match="only building the project"):
        resolver(resolver.request(requirements="pyproject.toml"))


def test_local_wheels_are_kept_by_path_and_hash(resolver: PythonResolver) -> None:
    wheel = make_wheel(resolver.project, "local", requires=["dep"])
    make_wheel(resolver.links, "dep")
    packages = resolver(resolver.request(local_wheels=(wheel.name,)))
    assert resolver.pins(packages) == ["dep==1.0", "local==1.0"]
    assert (packages[1].location, packages[1].sha256) == (wheel.name, sha256_of(wheel))


def test_a_wheel_for_another_platform_is_reported_with_its_line(resolver: PythonResolver) -> None:
    wheel = make_wheel(resolver.project, "w", tag="cp39-cp39-win_amd64")
    with pytest.raises(ResolveError, match="another Python or platform") as caught:
        resolver(resolver.request(local_wheels=(wheel.name,), line=7))
    assert caught.value.span == Span("build.envd", 7)


def test_the_reason_is_short_and_names_the_line(resolver: PythonResolver) -> None:
    make_wheel(resolver.links, "a", "1.0")
    with pytest.raises(ResolveError) as caught:
        resolver(resolver.request("a>=2", line=4))
    assert caught.value.span == Span("build.envd", 4)
    assert len(caught.value.details) <= 4
    assert "a" in caught.value.details[0]
    assert "unsatisfiable" not in caught.value.details[0]


def test_a_line_of_a_requirements_file_is_named(resolver: PythonResolver) -> None:
    (resolver.project / "r.txt").write_text("# one\nnot a requirement\n")
    with pytest.raises(ResolveError) as caught:
        resolver(resolver.request(requirements="r.txt"))
    assert caught.value.span == Span("r.txt", 2)


def test_an_index_that_does_not_answer_is_named(
    resolver: PythonResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    request = replace(
        resolver.request("a"), indexes=IndexSettings(default="http://127.0.0.1:9/simple")
    )
    with pytest.raises(OutsideError, match=r"127\.0\.0\.1:9"):
        resolver(request)


def test_credentials_are_in_no_message(
    resolver: PythonResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    where = "http://user:hunter2@127.0.0.1:9/simple"
    request = replace(resolver.request("a"), indexes=IndexSettings(default=where))
    with pytest.raises(OutsideError) as caught:
        resolver(request)
    assert "hunter2" not in repr((caught.value.message, caught.value.details, caught.value.hint))


def source_distribution(directory: Path, marker: Path, name: str = "evil") -> Path:
    """An sdist whose build leaves ``marker``."""
    tree = directory / f"{name}-1.0"
    tree.mkdir(parents=True)
    (tree / "setup.py").write_text(
        f"open({str(marker)!r}, 'w').close()\n"
        f"from setuptools import setup\nsetup(name={name!r}, version='1.0')\n"
    )
    (tree / "PKG-INFO").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    target = directory / f"{name}-1.0.tar.gz"
    with tarfile.open(target, "w:gz") as archive:
        archive.add(tree, arcname=tree.name)
    return target


@pytest.mark.parametrize(
    "line",
    [
        "evil",
        "-e ./src/evil-1.0",
        "--editable=./src/evil-1.0",
        "./src/evil-1.0",
        "./src/evil-1.0.tar.gz",
        "evil @ file://{project}/src/evil-1.0.tar.gz",
        "-e file://{project}/src/evil-1.0",
        "evil \\\n -e ./src/evil-1.0",
        "evil # \\\n-e ./src/evil-1.0",
        "-r deeper.txt",
    ],
)
def test_no_untrusted_code_runs_on_this_machine(resolver: PythonResolver, line: str) -> None:
    marker = resolver.root / "ran"
    archive = source_distribution(resolver.project / "src", marker)
    (resolver.links / archive.name).write_bytes(archive.read_bytes())
    (resolver.project / "deeper.txt").write_text("-e ./src/evil-1.0\n")
    text = line.replace("{project}", str(resolver.project))
    (resolver.project / "r.txt").write_text(text + "\n")
    with pytest.raises(ResolveError):
        resolver(resolver.request(requirements="r.txt"))
    assert not marker.exists()


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        ("pyproject.toml", '[tool.uv.pip]\nno-binary = ["evil"]\n', "evil must be built"),
        ("pyproject.toml", '[tool.uv]\nno-binary-package = ["evil"]\n', "evil must be built"),
        ("../uv.toml", 'no-binary-package = ["evil"]\n', "evil must be built"),
        ("uv.toml", '[pip]\nonly-binary = [":none:"]\nno-build = false\n', "cannot resolve"),
    ],
)
def test_no_uv_setting_runs_untrusted_code_on_this_machine(
    resolver: PythonResolver, monkeypatch: pytest.MonkeyPatch, file: str, text: str, message: str
) -> None:
    monkeypatch.delenv("UV_NO_CONFIG")
    source_distribution(resolver.links, resolver.root / "ran")
    (resolver.project / file).write_text(text)
    with pytest.raises(ResolveError, match=message):
        resolver(resolver.request("evil"))
    assert not (resolver.root / "ran").exists()


@pytest.mark.parametrize("name", ["-e .", "--constraint=/x", "-r x.txt", "hg+https://h/r", "a b"])
def test_names_are_not_read_as_options(resolver: PythonResolver, name: str) -> None:
    with pytest.raises(ResolveError):
        resolver(resolver.request(name))


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["-e six"], "-e six: only a directory can be editable"),
        (["-e ./a.whl"], "-e ./a.whl: only a directory can be editable"),
        (["-e https://me:s3cret@h/a.tar.gz"], "a.tar.gz: only a directory can be editable"),
        (["-e ./nothing"], "nothing not found in the project"),
        (["-e ./file"], "file is not a directory"),
        (["-e ../elsewhere"], "elsewhere is outside the project"),
        (["-e ./out"], "out leads out of the project"),
        (["-e .", "."], ". and -e . are the same package"),
        (["./link", "-e ./pkg"], "./link and -e pkg are the same package"),
        (["-e git+https://h/r"], "-e git+https://h/r has no name"),
        (["-e svn+https://h/r"], "unsupported version control system"),
    ],
)
def test_an_editable_requirement_must_be_a_directory_of_the_project(
    resolver: PythonResolver, names: list[str], message: str
) -> None:
    (resolver.project / "file").write_text("")
    (resolver.project / "pkg").mkdir()
    (resolver.project / "link").symlink_to("pkg")
    (resolver.project / "out").symlink_to(resolver.root)
    with pytest.raises(UsageError) as caught:
        resolver(resolver.request(*names, line=7))
    assert message in caught.value.message
    assert "s3cret" not in f"{caught.value.message} {caught.value.hint}"
    assert caught.value.span == Span("build.envd", 7)


def test_a_directory_is_resolved_in_the_sandbox_and_locked_by_content(
    resolver: PythonResolver,
) -> None:
    tree = resolver.project / "pkg"
    tree.mkdir()
    (tree / "setup.py").write_text("x")
    inside = FakeResolveSandbox(
        "", PYLOCK_HEAD + '[[packages]]\nname = "Pkg"\ndirectory = { path = "../sources/0/tree" }\n'
    )
    request = replace(resolver.request("./pkg"), run_in_sandbox=inside)
    (one,) = resolver(request)
    assert (one.name, one.source, one.location) == ("pkg", "local", "pkg")
    assert len(one.sha256) == 64
    assert inside.requirements == "/run/danlu/sources/0/tree\n"
    (tree / "setup.py").write_text("y")
    assert resolver(request)[0].sha256 != one.sha256


def test_constraints_of_this_machine_count_in_the_sandbox(
    resolver: PythonResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    (resolver.project / "pkg").mkdir()
    (resolver.project / "pkg" / "setup.py").touch()
    (resolver.root / "limits.txt").write_text("six<2\n")
    monkeypatch.setenv("UV_CONSTRAINT", f"{resolver.root}/limits.txt https://one.test/limits.txt")
    inside = FakeResolveSandbox("", PYLOCK_HEAD)
    request = replace(resolver.request("./pkg"), run_in_sandbox=inside)
    resolver(request)
    options = inside.environment["OPTIONS"]
    assert options.endswith(
        "--constraints constraints-0.txt --constraints https://one.test/limits.txt"
    )
    assert inside.files["constraints-0.txt"] == "six<2\n"


def test_a_local_wheel_is_mounted_in_the_sandbox_and_locked_unchanged(
    resolver: PythonResolver,
) -> None:
    (resolver.project / "pkg").mkdir()
    (resolver.project / "pkg" / "setup.py").touch()
    wheel = make_wheel(resolver.project, "mine")
    inside = FakeResolveSandbox(
        "",
        PYLOCK_HEAD + '[[packages]]\nname = "mine"\nversion = "1.0"\n'
        f'archive = {{ path = "/run/danlu/wheels{wheel}", '
        f'hashes = {{ sha256 = "{sha256_of(wheel)}" }} }}\n',
    )
    request = resolver.request("./pkg", local_wheels=(wheel.name,))
    (one,) = resolver(replace(request, run_in_sandbox=inside))
    assert one == resolver(resolver.request(local_wheels=(wheel.name,)))[0]
    assert f"mine @ file:///run/danlu/wheels{wheel}\n" in inside.requirements
    assert f"/run/danlu/wheels{wheel}" in [mount.target for mount in inside.mounts]


def test_a_source_distribution_is_kept_by_file_and_hash(resolver: PythonResolver) -> None:
    archive = source_distribution(resolver.root / "sd", resolver.root / "ran")
    (resolver.links / archive.name).write_bytes(archive.read_bytes())
    digest = sha256_of(archive)
    inside = FakeResolveSandbox(
        "evil==1.0\n",
        PYLOCK_HEAD + '[[packages]]\nname = "evil"\nversion = "1.0"\n'
        f'sdist = {{ url = "file:///x/{archive.name}", hashes = {{ sha256 = "{digest}" }} }}\n',
    )
    (one,) = resolver(replace(resolver.request("evil"), run_in_sandbox=inside))
    assert one == LockedPackage("evil", "1.0", "sdist", archive.name, digest)
    assert not (resolver.root / "ran").exists()


def test_no_binary_locks_a_source_distribution(resolver: PythonResolver) -> None:
    make_wheel(resolver.links, "evil", "1.0")
    archive = source_distribution(resolver.links, resolver.root / "ran")
    (resolver.project / "r.txt").write_text("evil\n")
    request = resolver.request(requirements="r.txt")
    before = resolver(request)
    assert before[0].source == "index"
    (resolver.project / "r.txt").write_text("--no-binary=Evil\nevil\n")
    with pytest.raises(ResolveError, match="evil must be built from source"):
        resolver(request, before)
    inside = FakeResolveSandbox(
        "evil==1.0\n",
        PYLOCK_HEAD + '[[packages]]\nname = "evil"\nversion = "1.0"\n'
        f'sdist = {{ url = "file:///x/{archive.name}", '
        f'hashes = {{ sha256 = "{sha256_of(archive)}" }} }}\n',
    )
    (one,) = resolver(replace(request, run_in_sandbox=inside), before)
    assert (one.source, one.file) == ("sdist", archive.name)
    assert inside.environment["FORMATS"] == "--no-binary evil"
    assert not (resolver.root / "ran").exists()


def test_a_locked_source_distribution_is_replaced_if_only_wheels_are_allowed(
    resolver: PythonResolver,
) -> None:
    wheel = make_wheel(resolver.links, "evil", "1.0")
    before = LockedPackage("evil", "1.0", "sdist", "evil-1.0.tar.gz", "0" * 64)
    (resolver.project / "r.txt").write_text("--only-binary evil\nevil\n")
    (one,) = resolver(resolver.request(requirements="r.txt"), [before])
    assert (one.source, one.file) == ("index", wheel.name)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("evil\n--only-binary :all:\n", "cannot resolve Python packages"),
        ("--only-binary :all:\n./src\n", "./src must be built, but --only-binary forbids it"),
        (
            "./src\n--no-binary a b\n",
            "cannot read requirement '--no-binary a b': pip ignores 'b' after an option",
        ),
        (
            "# none\n--only-binary\n",
            "cannot read requirement '--only-binary': option --only-binary requires argument",
        ),
    ],
)
def test_options_that_forbid_a_build_are_reported_with_the_line(
    resolver: PythonResolver, text: str, message: str
) -> None:
    source_distribution(resolver.links, resolver.root / "ran")
    (resolver.project / "src").mkdir()
    (resolver.project / "r.txt").write_text(text)
    inside = FakeResolveSandbox("", PYLOCK_HEAD)
    with pytest.raises(ResolveError) as caught:
        resolver(replace(resolver.request(requirements="r.txt"), run_in_sandbox=inside))
    assert caught.value.message == message
    assert caught.value.span is not None
    assert caught.value.span.file == "r.txt"
    assert caught.value.span.line == (1 if text.startswith("evil") else 2)
    assert inside.mounts == ()


@pytest.mark.parametrize(
    "entry",
    [
        'name = "../x"\nversion = "1"',
        'name = "x"\nversion = "1; rm"',
        'name = "x"\nversion = "1"\nwheels = [{ name = "../../x-1-py3-none-any.whl", url = "u" }]',
        'name = "x"\nversion = "1"\nsdist = { name = "a/../b.tar.gz", url = "http://h/x" }',
    ],
)
def test_output_of_the_sandbox_is_validated(resolver: PythonResolver, entry: str) -> None:
    (resolver.project / "pkg").mkdir()
    (resolver.project / "pkg" / "setup.py").touch()
    inside = FakeResolveSandbox("", f"{PYLOCK_HEAD}[[packages]]\n{entry}\n")
    try:
        result = resolver(replace(resolver.request("./pkg"), run_in_sandbox=inside))
    except DanluError:
        return
    assert result == ()


def test_output_of_the_sandbox_is_not_read_through_a_symlink(
    resolver: PythonResolver, tmp_path: Path
) -> None:
    secret = tmp_path / "secret"
    secret.write_text("error: top secret\n")
    (resolver.project / "pkg").mkdir()
    (resolver.project / "pkg" / "setup.py").touch()
    inside = FakeResolveSandbox("", "", code=2)

    async def run(
        args: Sequence[str], mounts: Sequence[Mount], environment: Mapping[str, str]
    ) -> int:
        code = await inside(args, mounts, environment)
        work = next(mount.source for mount in mounts if mount.target == "/run/danlu/resolve")
        assert work is not None
        for name in ("messages.txt", "pylock.toml"):
            (work / name).unlink()
            (work / name).symlink_to(secret)
        return code

    with pytest.raises(DanluError, match="exit code 2") as caught:
        resolver(replace(resolver.request("./pkg"), run_in_sandbox=run))
    assert not caught.value.details
    inside.code = 0
    assert resolver(replace(resolver.request("./pkg"), run_in_sandbox=run)) == ()


def test_a_failed_build_in_the_sandbox_is_reported(resolver: PythonResolver) -> None:
    (resolver.project / "pkg").mkdir()
    (resolver.project / "pkg" / "setup.py").touch()
    inside = FakeResolveSandbox("", "", code=2)
    with pytest.raises(ResolveError) as caught:
        resolver(replace(resolver.request("./pkg"), run_in_sandbox=inside))
    assert "it broke" in caught.value.details[0]


def test_a_version_that_a_file_spells_otherwise_can_be_locked(resolver: PythonResolver) -> None:
    from danlu.environment.lock import FunctionLock, Lock, LockedBase
    from danlu.resolve.lockfile import read_lock, write_lock

    make_wheel(resolver.links, "certifi", "2022.06.15")
    packages = resolver(resolver.request("certifi"))
    lock = Lock({"build": FunctionLock("linux/amd64", LockedBase("", 0), packages=packages)})
    assert read_lock(write_lock(lock), "danlu.lock") == lock
    assert resolver(resolver.request("certifi"), packages) == packages


def pylock(directory: Path, wheel: Path) -> None:
    entry = f'{{ path = "{wheel}", hashes = {{ sha256 = "{sha256_of(wheel)}" }} }}'
    (directory / "pylock.toml").write_text(
        'lock-version = "1.0"\ncreated-by = "other"\n\n'
        f'[[packages]]\nname = "app"\nversion = "1.0"\nwheels = [{entry}]\n'
    )


def test_danlus_own_packages_are_resolved_in_addition_to_a_pylock(resolver: PythonResolver) -> None:
    pylock(resolver.project, make_wheel(resolver.links, "app", "1.0"))
    make_wheel(resolver.links, "app", "2.0")
    make_wheel(resolver.links, "tool", "3.0", requires=["app"])
    request = resolver.request(requirements="pylock.toml")
    added = PythonPackages(names=("tool",), source="install.tool")
    packages = resolver(replace(request, declared=[*request.declared, added]))
    assert resolver.pins(packages) == ["app==1.0", "tool==3.0"]


def test_a_pylock_without_the_declared_packages_is_rejected(resolver: PythonResolver) -> None:
    pylock(resolver.project, make_wheel(resolver.links, "app", "1.0"))
    with pytest.raises(ResolveError, match=r"it has app 1\.0, but app>=2 is required"):
        resolver(resolver.request("app>=2", requirements="pylock.toml"))


@pytest.mark.parametrize(
    "line", ["six --config-settings a=b", "-e ./p -C a=b", "six --global-option=x"]
)
def test_build_settings_of_one_package_are_refused_with_their_line(
    resolver: PythonResolver, line: str
) -> None:
    (resolver.project / "r.txt").write_text(f"# why\n{line}\n")
    with pytest.raises(ResolveError, match="per-requirement option") as caught:
        resolver(resolver.request(requirements="r.txt"))
    assert (caught.value.span and (caught.value.span.file, caught.value.span.line)) == ("r.txt", 2)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("a --hash=sha256:{hash}\nb\n", 2, "b has no --hash, but other requirements have one"),
        ("b\na --hash=sha256:{hash}\n", 1, "b has no --hash, but other requirements have one"),
        ("--require-hashes\na\n", 2, "a has no --hash, but --require-hashes is set"),
        ("a --hash=sha512:{hash}\n", 1, "a has no valid --hash=sha256:…"),
        ("a --hash=sha256:short\n", 1, "a has no valid --hash=sha256:…"),
        ("a --hash=sha256:{hash}\n-r more.txt\n", 1, "b has no --hash"),
    ],
)
def test_hashes_are_on_all_requirements_or_on_none(
    resolver: PythonResolver, text: str, line: int, message: str
) -> None:
    wheels = {name: make_wheel(resolver.links, name) for name in ("a", "b")}
    written = text.replace("{hash}", sha256_of(wheels["a"]))
    (resolver.project / "r.txt").write_text(written)
    (resolver.project / "more.txt").write_text("b\n")
    with pytest.raises(ResolveError) as caught:
        resolver(resolver.request(requirements="r.txt"))
    assert message in caught.value.message
    place = "more.txt" if "more" in text else "r.txt"
    assert caught.value.span == Span(place, line)
    # pip refuses the same file.
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--no-index", "--no-deps"]
    command += ["--ignore-installed", "--find-links", str(resolver.links), "-r", "r.txt"]
    if "sha512" not in text:
        refused = subprocess.run(command, cwd=resolver.project, capture_output=True, check=False)
        assert refused.returncode != 0


def test_hashes_need_not_be_in_constraints(resolver: PythonResolver) -> None:
    wheel = make_wheel(resolver.links, "a")
    (resolver.project / "r.txt").write_text(f"-c c.txt\na --hash=sha256:{sha256_of(wheel)}\n")
    (resolver.project / "c.txt").write_text("a<2\n")
    assert resolver.pins(resolver(resolver.request(requirements="r.txt"))) == ["a==1.0"]


@pytest.mark.parametrize(
    ("name", "content", "where", "message"),
    [
        ("r.txt", b"six\n\xff\n", Span("r.txt", 2), "r.txt is not UTF-8"),
        ("r.txt", None, Span("build.envd", 7), "cannot read requirements file r.txt: Is a dir"),
        ("pyproject.toml", b"a = 1\n[project\n", Span("pyproject.toml", 2), "not valid TOML"),
        ("pyproject.toml", b"[project]\ndependencies = 1\n", Span("build.envd", 7), "not a list"),
        ("pylock.toml", b"[\n", Span("pylock.toml", 1), "not valid TOML"),
        ("pylock.toml", b"a = 1\n", Span("build.envd", 7), "has lock-version"),
    ],
)
def test_errors_in_files_have_a_file_and_a_line(
    resolver: PythonResolver, name: str, content: bytes | None, where: Span, message: str
) -> None:
    path = resolver.project / name
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    with pytest.raises(ResolveError) as caught:
        resolver(resolver.request(requirements=name, line=7))
    assert message in caught.value.message
    assert str(resolver.root) not in caught.value.message
    assert caught.value.span == where


def test_packages_known_to_have_the_same_files_are_refused_when_locking(
    resolver: PythonResolver, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_wheel(resolver.links, "opencv-python-headless")
    make_wheel(resolver.links, "opencv-python")
    make_wheel(resolver.links, "detector", requires=["opencv-python"])
    make_wheel(resolver.links, "augmenter", requires=["opencv-python-headless"])
    request = resolver.request("detector", "augmenter")
    with pytest.raises(ResolveError, match="both contain the same files") as caught:
        resolver(request)
    assert 'exclude-dependencies = ["opencv-python"]' in caught.value.hint
    (resolver.project / "excluded.txt").write_text("opencv-python\n")
    monkeypatch.setenv("UV_EXCLUDE", "excluded.txt")
    request = resolver.request("detector", "augmenter")
    assert resolver.pins(resolver(request)) == [
        "augmenter==1.0",
        "detector==1.0",
        "opencv-python-headless==1.0",
    ]
