"""Conda packages are solved from real channels, and unpacked without trusting them."""

from __future__ import annotations

import functools
import http.server
import stat
import threading
from collections.abc import Mapping
from pathlib import Path

import pytest
from msgspec.structs import replace

from danlu.environment.conda import CondaChannels
from danlu.environment.lock import LockedCondaPackage
from danlu.errors import ChecksumError, DanluError, OutsideError, ResolveError, UsageError
from danlu.graph.ops import CondaPackage
from danlu.resolve.conda import choose_virtual_packages
from danlu.sources.conda.channels import ChannelSettings, read_channel_settings
from danlu.sources.conda.solve import CondaRequest, CondaSpec, solve_packages
from danlu.sources.conda.unpack import unpack_package
from danlu.sources.environment_file import parse_environment_file
from danlu.util.config import Configuration, MirrorConfig
from tests.fakes.conda import PLACEHOLDER, CondaFile, index_channel, write_package
from tests.lang.support import envd

pytestmark = pytest.mark.anyio
PREFIX = PLACEHOLDER.encode()


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    return tmp_path / "channel"


def request(
    channel: str, cache: Path, *specs: str, kept: tuple[LockedCondaPackage, ...] = ()
) -> CondaRequest:
    return CondaRequest(
        specs=tuple(CondaSpec(spec) for spec in specs),
        channels={"team": (channel,)},
        libc="glibc 2.36",
        architecture="amd64",
        cache=cache,
        kept=kept,
    )


def unpack(archive: Path, tmp_path: Path, *, python: str = "", build: str = "0") -> Path:
    """Unpack an archive made by write_package(); return the environment's prefix."""
    name, version, _ = archive.name.rsplit("-", 2)
    site_packages = f"lib/python{python}/site-packages" if python else ""
    op = CondaPackage(
        name, version, build, "team", archive.parent.name, archive.name, "0" * 64,
        "/opt/conda", python, site_packages,
    )  # fmt: skip
    tree = tmp_path / "tree"
    tree.mkdir()
    unpack_package(archive, op, tree)
    return tree / "opt/conda"


# -- solving ---------------------------------------------------------------------------------------


async def test_packages_are_locked_with_build_hash_and_channel_name(
    channel: Path, tmp_path: Path
) -> None:
    write_package(channel, "app", depends=["library >=1"], noarch="generic")
    write_package(channel, "library", "1.5", "h1_0", depends=["__glibc >=2.17"])
    address = index_channel(channel)
    app, library = await solve_packages(request(address, tmp_path / "cache", "app"))
    assert (app.name, app.subdir, app.channel) == ("app", "noarch", "team")
    assert (library.version, library.build, library.file) == (
        "1.5",
        "h1_0",
        "library-1.5-h1_0.conda",
    )
    assert len(library.sha256) == 64
    assert library.size == (channel / "linux-64" / library.file).stat().st_size
    assert "file:" not in repr((app, library))


async def test_locked_versions_are_kept_if_they_still_fit(channel: Path, tmp_path: Path) -> None:
    write_package(channel, "app", noarch="generic")
    index_channel(channel)
    cache = tmp_path / "cache"
    before = await solve_packages(request(channel.as_uri(), cache, "app"))
    write_package(channel, "app", "2.0", noarch="generic")
    address = index_channel(channel)
    assert await solve_packages(request(address, cache, "app", kept=before)) == before
    newest = await solve_packages(request(address, cache, "app"))
    assert [package.version for package in newest] == ["2.0"]


@pytest.mark.parametrize(
    ("spec", "message", "detail"),
    [
        ("missing", "conda package missing not found for linux-64 on team", ""),
        ("app=9", r"conda package app 9.\* not found for linux-64 on team", ""),
        ("app missing absent", "not found for linux-64 on team", ""),
        ("app new-glibc", "cannot be installed together", "glibc"),
        ("$$", "invalid conda package '$$'", ""),
    ],
)
async def test_unsolvable_packages_are_named(
    channel: Path, tmp_path: Path, spec: str, message: str, detail: str
) -> None:
    write_package(channel, "app", noarch="generic")
    write_package(channel, "new-glibc", depends=["__glibc >=2.90"])
    address = index_channel(channel)
    with pytest.raises(ResolveError, match=message.replace("$", r"\$")) as caught:
        await solve_packages(request(address, tmp_path / "cache", *spec.split()))
    assert detail in "\n".join(caught.value.details)
    assert caught.value.hint


async def test_virtual_packages_are_those_of_the_base_unless_replaced(
    channel: Path, tmp_path: Path
) -> None:
    write_package(channel, "gpu", depends=["__cuda >=12.2", "__linux", "__unix", "__glibc >=2.36"])
    expected = request(index_channel(channel), tmp_path / "cache", "gpu")
    with pytest.raises(ResolveError) as caught:
        await solve_packages(expected)
    assert "__cuda" in "\n".join(caught.value.details)
    newer = replace(expected, virtual_packages={"__cuda": "12.4"})
    assert [package.name for package in await solve_packages(newer)] == ["gpu"]
    for changed in ({"__cuda": "12.1"}, {"__glibc": "2.17"}, {"__cuda": ""}):
        with pytest.raises(ResolveError, match="cannot be installed together"):
            await solve_packages(replace(newer, virtual_packages={"__cuda": "12.4", **changed}))
    with pytest.raises(UsageError, match="invalid version of a virtual package"):
        await solve_packages(replace(expected, virtual_packages={"__cuda": "new!"}))


def test_cuda_of_the_build_file_is_condas_unless_its_variable_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_cuda = envd('def build():\n    base(os="debian12")\n    install.cuda("12.4.1")\n')
    monkeypatch.delenv("CONDA_OVERRIDE_CUDA", raising=False)
    assert choose_virtual_packages(with_cuda) == {"__cuda": "12.4"}
    monkeypatch.setenv("CONDA_OVERRIDE_CUDA", "11.8")
    monkeypatch.setenv("CONDA_OVERRIDE_GLIBC", "2.28")
    assert choose_virtual_packages(with_cuda) == {"__cuda": "11.8", "__glibc": "2.28"}
    monkeypatch.delenv("CONDA_OVERRIDE_GLIBC")
    monkeypatch.setenv("CONDA_OVERRIDE_CUDA", "")
    assert choose_virtual_packages(with_cuda) == {"__cuda": ""}


async def test_a_base_without_glibc_is_refused(channel: Path, tmp_path: Path) -> None:
    write_package(channel, "app", noarch="generic")
    expected = request(index_channel(channel), tmp_path / "cache", "app")
    musl = replace(expected, libc="musl 1.2")
    with pytest.raises(ResolveError, match="glibc"):
        await solve_packages(musl)


async def test_an_unreachable_channel_is_an_outside_error_without_its_password(
    tmp_path: Path,
) -> None:
    address = "http://user:secret@127.0.0.1:9/t/token/team"
    with pytest.raises(OutsideError, match="cannot read conda channel team") as caught:
        await solve_packages(request(address, tmp_path / "cache", "app"))
    output = "\n".join([caught.value.message, *caught.value.details])
    assert "secret" not in output
    assert "token" not in output
    assert "127.0.0.1:9" in output
    assert "[mirrors.team]" in caught.value.hint


async def test_the_next_mirror_is_used_if_one_does_not_answer(
    channel: Path, tmp_path: Path
) -> None:
    write_package(channel, "app", noarch="generic")
    expected = request("http://127.0.0.1:9/team", tmp_path / "cache", "app")
    places = (*expected.channels["team"], index_channel(channel))
    (app,) = await solve_packages(
        CondaRequest(expected.specs, {"team": places}, "glibc 2.36", "amd64", expected.cache)
    )
    assert app.channel == "team"


async def test_a_cached_index_is_enough_offline(channel: Path, tmp_path: Path) -> None:
    write_package(channel, "app", noarch="generic")
    index_channel(channel)
    cache = tmp_path / "cache"
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        online = request(f"http://127.0.0.1:{server.server_port}/channel", cache, "app")
        packages = await solve_packages(online)
        server.shutdown()
        thread.join()
    assert await solve_packages(replace(online, offline=True)) == packages
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    with pytest.raises(OutsideError, match="--offline") as caught:
        await solve_packages(replace(online, offline=True, cache=tmp_path / "cold"))
    assert "without --offline" in caught.value.hint


# -- unpacking -------------------------------------------------------------------------------------


@pytest.mark.parametrize("legacy", [False, True])
def test_the_prefix_is_replaced_in_texts_and_binaries(
    channel: Path, tmp_path: Path, legacy: bool
) -> None:
    files = {
        "bin/tool": CondaFile(b"#!" + PREFIX + b"/bin/sh\n", 0o775, prefix="text"),
        "lib/data.so": CondaFile(b"\0" + PREFIX + b"/lib:" + PREFIX + b"\0end", prefix="binary"),
        "lib/link": CondaFile(link="data.so"),
    }
    prefix = unpack(write_package(channel, "tool", files=files, legacy=legacy), tmp_path)
    assert (prefix / "bin/tool").read_text() == "#!/opt/conda/bin/sh\n"
    assert stat.S_IMODE((prefix / "bin/tool").stat().st_mode) == 0o755
    content = (prefix / "lib/data.so").read_bytes()
    assert len(content) == len(files["lib/data.so"].content)
    assert content.startswith(b"\0/opt/conda/lib:/opt/conda\0")
    assert content.endswith(b"\0end")
    assert (prefix / "lib/link").readlink() == Path("data.so")
    record = (prefix / "conda-meta/tool-1.0-0.json").read_text()
    assert '"files":["bin/tool","lib/data.so","lib/link"]' in record
    assert str(tmp_path) not in record


def test_pure_python_goes_to_the_interpreters_site_packages(channel: Path, tmp_path: Path) -> None:
    files = {
        "site-packages/greet.py": CondaFile(b"def main(): ...\n"),
        "python-scripts/old": CondaFile(b"#!/bin/sh\n", 0o755),
    }
    archive = write_package(
        channel, "greet", files=files, noarch="python", entry_points=["greet = greet:main"]
    )
    prefix = unpack(archive, tmp_path, python="3.11")
    assert (prefix / "lib/python3.11/site-packages/greet.py").is_file()
    assert (prefix / "bin/old").is_file()
    script = (prefix / "bin/greet").read_text()
    assert script.startswith("#!/opt/conda/bin/python3.11\n")
    assert "from greet import main" in script


@pytest.mark.parametrize("when", ["pre-link", "post-link"])
def test_a_package_that_runs_a_script_is_refused_by_name(
    channel: Path, tmp_path: Path, when: str
) -> None:
    files = {f"bin/.fonts-{when}.sh": CondaFile(b"touch /evil\n", 0o755)}
    with pytest.raises(ResolveError, match=f"fonts 1.0 has a {when} script"):
        unpack(write_package(channel, "fonts", files=files), tmp_path)


HOSTILE: Mapping[str, tuple[dict[str, CondaFile], list[str]]] = {
    "a path outside": ({}, ["../../../evil"]),
    "an absolute path": ({}, ["/etc/hostname"]),
    "a file below a link of the archive": ({"lib": CondaFile(link="/etc")}, ["lib/hostname"]),
    "a file that is not there": ({}, ["lib/absent"]),
    "a path listed twice": ({"a": CondaFile()}, ["a", "a"]),
    "a link to outside in the way": (
        {"lib/python3.11": CondaFile(link="/etc"), "site-packages/a": CondaFile()},
        ["lib/python3.11", "site-packages/a"],
    ),
}


@pytest.mark.parametrize("case", sorted(HOSTILE))
def test_a_hostile_package_writes_and_reads_nothing_outside(
    channel: Path, tmp_path: Path, case: str
) -> None:
    files, listing = HOSTILE[case]
    archive = write_package(channel, "evil", files=files, noarch="python", listed=listing)
    before = sorted(tmp_path.iterdir())
    with pytest.raises(OutsideError, match="damaged"):
        unpack(archive, tmp_path, python="3.11")
    created = {path.name for path in tmp_path.iterdir()} - {path.name for path in before}
    assert created == {"tree"}
    assert not list((tmp_path / "tree").rglob("hostname"))


@pytest.mark.parametrize("point", ["../evil = a:b", "a = b", "x = a:b; import os", "n = a b:c"])
def test_an_invalid_entry_point_is_refused(channel: Path, tmp_path: Path, point: str) -> None:
    archive = write_package(channel, "evil", noarch="python", entry_points=[point])
    with pytest.raises(OutsideError, match="entry point"):
        unpack(archive, tmp_path, python="3.11")


def test_an_archive_of_another_package_is_refused(channel: Path, tmp_path: Path) -> None:
    archive = write_package(channel, "app")
    with pytest.raises(ChecksumError, match="not app"):
        unpack(archive, tmp_path, build="other")


def test_a_file_that_is_not_an_archive_is_rejected(tmp_path: Path) -> None:
    archive = tmp_path / "linux-64" / "app-1.0-0.conda"
    archive.parent.mkdir()
    archive.write_bytes(b"not a zip")
    with pytest.raises(OutsideError, match="not a conda package"):
        unpack(archive, tmp_path)


def test_bytecode_matches_the_time_of_its_source_in_a_layer(channel: Path, tmp_path: Path) -> None:
    header = b"\xa7\x0d\x0d\x0a" + b"\0\0\0\0" + (1_600_000_000).to_bytes(4, "little") + b"\1\0\0\0"
    files = {"lib/a.pyc": CondaFile(header + b"code")}
    prefix = unpack(write_package(channel, "app", files=files), tmp_path)
    content = (prefix / "lib/a.pyc").read_bytes()
    assert content[8:12] == (315532800).to_bytes(4, "little")
    assert content[12:] == b"\1\0\0\0code"


# -- channels --------------------------------------------------------------------------------------

CONDARC = """
channels: [team, defaults]
channel_alias: https://user:secret@mirror.example/conda/
default_channels: [https://mirror.example/anaconda/pkgs/main]
custom_channels:
  bioconda: https://mirror.example/cloud
"""


def test_channels_are_read_from_a_condarc(tmp_path: Path) -> None:
    settings = read_channel_settings(CondaChannels(CONDARC), Configuration(), {"HOME": "/nowhere"})
    names = settings.list_names(["bioconda"])
    assert list(names) == ["bioconda", "team", "pkgs/main"]
    assert settings.locate("bioconda", tmp_path) == ("https://mirror.example/cloud/bioconda",)
    assert settings.locate("team", tmp_path) == ("https://user:secret@mirror.example/conda/team",)
    assert settings.locate("pkgs/main", tmp_path) == ("https://mirror.example/anaconda/pkgs/main",)
    # The same channel by its address has the same name, without the password.
    assert settings.find_name("https://user:secret@mirror.example/conda/team") == "team"


def test_the_users_condarc_counts_and_the_build_files_wins(tmp_path: Path) -> None:
    (tmp_path / ".condarc").write_text("channels: [mine]\nchannel_alias: https://${HOST}/c\n")
    env = {"HOME": str(tmp_path)}
    own = read_channel_settings(None, Configuration(), env)
    assert list(own.list_names([])) == ["mine"]
    declared = CondaChannels("channels: [theirs]")
    assert list(read_channel_settings(declared, Configuration(), env).list_names([])) == ["theirs"]


def test_mirrors_of_the_configuration_win(tmp_path: Path) -> None:
    config = Configuration(mirrors={"conda-forge": MirrorConfig(urls=("https://a/", "https://b"))})
    settings = read_channel_settings(None, config, {"HOME": str(tmp_path)})
    assert settings.locate("conda-forge", tmp_path) == ("https://a", "https://b")


def test_nodefaults_leaves_only_the_named_channels() -> None:
    assert list(ChannelSettings().list_names(["team", "nodefaults"])) == ["team"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("channels: [", "not valid YAML"),
        ("- a", "is a mapping"),
        ("channels: {a: b}", "must be a list"),
        ("custom_channels: [a]", "must be a mapping"),
    ],
)
def test_an_invalid_condarc_is_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_channel_settings(CondaChannels(text), Configuration(), {"HOME": "/nowhere"})


def test_the_images_condarc_has_no_credentials() -> None:
    text = "channels: [https://u:p@host/t/token/team]"
    (entry,) = CondaChannels(text).config_files()
    assert entry.content == "channels: [https://host/team]\n"


# -- environment.yml -------------------------------------------------------------------------------


def test_an_environment_file_has_channels_packages_and_pip() -> None:
    text = "channels:\n  - team\ndependencies:\n  - python=3.10\n  - pip:\n    - via\n    - -e .\n"
    file = parse_environment_file(text, "environment.yml")
    assert file.channels == ("team",)
    assert file.specs == ((4, "python=3.10"),)
    assert file.pip == ((6, "via"), (7, "-e ."))


def test_variables_of_an_environment_file_are_text_as_conda_exports_them() -> None:
    text = "variables:\n  A: 10\n  B: yes\n  C: '010'\n  D: ' x '\n"
    file = parse_environment_file(text, "environment.yml")
    assert file.variables == {"A": "10", "B": "yes", "C": "010", "D": " x "}


def test_aliases_and_merged_keys_of_an_environment_file_are_read() -> None:
    text = "a: &a {variables: {A: b}}\n<<: *a\nchannels: &c [c]\ndependencies: *c\n"
    file = parse_environment_file(text, "environment.yml")
    assert (file.variables, file.channels, file.specs) == ({"A": "b"}, ("c",), ((3, "c"),))


def test_requirements_file_of_an_environment_file_may_be_a_file_url() -> None:
    text = "dependencies:\n  - pip: ['-r file:a.txt', '--requirement=file:b.txt', 'x @ file:c']\n"
    lines = parse_environment_file(text, "environment.yml").pip
    assert [line for _, line in lines] == ["-r a.txt", "--requirement=b.txt", "x @ file:c"]


def test_last_pip_list_of_an_environment_file_counts() -> None:
    text = "dependencies:\n  - pip: [a]\n  - pip: b\n"
    assert parse_environment_file(text, "environment.yml").pip == ((3, "b"),)


@pytest.mark.parametrize(
    ("text", "message", "line"),
    [
        ("a: [", "not valid YAML", None),
        ("[]", "not a conda environment file", 1),
        ("dependencies: x", "got `str` at `\\$.dependencies`", 1),
        ("dependencies:\n  - a\n  - conda: [b]\n", "conda", 3),
        ("dependencies:\n  - pip: [[b]]\n", "Expected `str`, got `array`", 2),
        ("dependencies:\n  - a\n  - 3.10\n", "got `float` at `\\$.dependencies\\[1\\]`", 3),
        ("channels: a\n", "got `str` at `\\$.channels`", 1),
        ("channels:\ndependencies: [a]\n", "got `null` at `\\$.channels`", 1),
        ('channels: ["https://h.example/$TOK/c"]\n', "has a variable", 1),
        ("dependencies: [a]\ndependencies: [b]\n", "duplicate key 'dependencies'", 2),
        ("dependencies:\n  - pip: [a]\n    pip: [b]\n", "duplicate key 'pip'", 3),
        ("dependencies: [a]\n---\ndependencies: [b]\n", "2 documents", None),
        ("a: &a [*a]\n", "alias that contains itself", 1),
        ("variables: [A=1]\n", "got `array` at `\\$.variables`", 1),
        ("variables:\n  A: 010\n", "got `float` at `\\$.variables", 1),
        ("variables:\n  A: true\n", "got `bool`", 1),
        ("variables:\n  A:\n", "got `null`", 1),
        ("[" * 5000, "is nested more than 100 levels deep", None),
    ],
)
def test_an_invalid_environment_file_is_refused(text: str, message: str, line: int | None) -> None:
    with pytest.raises(DanluError, match=message) as caught:
        parse_environment_file(text, "environment.yml")
    if line is not None:
        assert caught.value.span is not None
        assert caught.value.span.line == line
