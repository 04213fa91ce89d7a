"""A pinned archive becomes a layer: from any mirror, verified, the same bytes every time."""

from __future__ import annotations

import gzip
import hashlib
from pathlib import Path

import anyio
import pytest

from danlu.builder.embedded.ops.unpack_archive import execute
from danlu.environment.archives import LockedArchive, find_archive_problem, make_archive_vertex
from danlu.errors import ChecksumError, MachineError, OutsideError, UsageError
from danlu.graph.ops import UnpackArchive
from danlu.sources.mirrors import VENDORS, fetch_archive, list_mirrors
from danlu.store import Layer
from danlu.util.config import Configuration, MirrorConfig
from danlu.util.retry import RetryPolicy
from tests.builder.wheels import WheelBuilder
from tests.oci.test_extract import archive

DATA = gzip.compress(archive([("file", "tool/bin/tool", "#!/bin/sh\n")]), mtime=0)
SHA = hashlib.sha256(DATA).hexdigest()
PATH = "20241219/tool-1.0+1.tar.gz"


def pin(**changed: object) -> LockedArchive:
    fields = {"sha256": SHA, "size": len(DATA), "path": PATH, **changed}
    return LockedArchive(name="tool", version="1.0", mirror="python", **fields)  # type: ignore[arg-type]


@pytest.fixture
def mirror(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    directory = tmp_path / "mirror"
    (directory / PATH).parent.mkdir(parents=True)
    (directory / PATH).write_bytes(DATA)
    monkeypatch.setenv("DANLU_MIRROR_PYTHON", str(directory))
    return directory


def build(builder: WheelBuilder) -> Layer:
    op = make_archive_vertex(pin(), "/opt/tool", strip_components=1).op
    assert isinstance(op, UnpackArchive)
    (layer,) = anyio.run(execute, op, builder.context())
    return layer


def test_an_archive_is_unpacked_below_its_target(builder: WheelBuilder, mirror: Path) -> None:
    layer = build(builder)
    tree = layer.tree
    assert (tree / "opt/tool/bin/tool").stat().st_mode & 0o777 == 0o644


def test_the_layer_does_not_depend_on_the_time_of_the_build(
    builder: WheelBuilder, mirror: Path
) -> None:
    first = build(builder)
    tree = first.tree
    assert {path.stat().st_mtime for path in tree.rglob("*") if path.is_dir()} == {315532800}
    assert build(builder).diff_id == first.diff_id


def test_a_cached_archive_needs_no_mirror(builder: WheelBuilder, mirror: Path) -> None:
    first = build(builder)
    (mirror / PATH).unlink()
    assert build(builder).diff_id == first.diff_id


def test_a_flat_directory_is_a_mirror_too(builder: WheelBuilder, mirror: Path) -> None:
    (mirror / PATH).rename(mirror / "tool-1.0+1.tar.gz")
    assert build(builder).files


def test_other_bytes_on_the_mirror_are_a_checksum_error(
    builder: WheelBuilder, mirror: Path
) -> None:
    (mirror / PATH).write_bytes(DATA[:-8])
    with pytest.raises(ChecksumError, match="checksum mismatch") as error:
        build(builder)
    assert "DANLU_MIRROR_PYTHON" in error.value.hint
    assert not list((builder.paths.cache / "http").glob("sha256/*"))


def fetch(tmp_path: Path, *urls: str) -> bytes:
    config = Configuration(mirrors={"python": MirrorConfig(urls=urls)})

    async def fetch_it() -> bytes:
        mirrors = list_mirrors("python", config, {}, {})
        cache = tmp_path / "cache"
        fetched = await fetch_archive("python", PATH, SHA, mirrors=mirrors, cache=cache)
        return fetched.path.read_bytes()

    return anyio.run(fetch_it)


def test_mirrors_are_tried_in_order(tmp_path: Path, mirror: Path) -> None:
    assert fetch(tmp_path, str(tmp_path / "missing"), mirror.as_uri() + "/") == DATA


def test_an_archive_that_no_mirror_has_is_an_error_with_the_settings(tmp_path: Path) -> None:
    with pytest.raises(OutsideError, match="not found on") as error:
        fetch(tmp_path, str(tmp_path / "a"), str(tmp_path / "b"))
    assert "[mirrors.python]" in error.value.hint
    assert "UV_PYTHON_INSTALL_MIRROR" in error.value.hint


def test_a_password_of_a_mirror_is_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.sources.http._RETRY_POLICY", RetryPolicy(4, 0.001))
    with pytest.raises(OutsideError) as failure:
        fetch(tmp_path, "http://user:secret@127.0.0.1:1/x")
    error = failure.value
    assert "secret" not in error.message + error.hint + "".join(error.details)


def test_our_variable_wins_over_the_configuration_over_that_of_other_tools() -> None:
    environ = {"DANLU_MIRROR_PYTHON": "/a b", "UV_PYTHON_INSTALL_MIRROR": "https://uv.example/"}
    config = Configuration(mirrors={"python": MirrorConfig(urls=("https://c.example",))})
    assert list_mirrors("python", config, {}, environ) == ("file:///a%20b",)
    del environ["DANLU_MIRROR_PYTHON"]
    assert list_mirrors("python", config, {}, environ) == ("https://c.example",)
    assert list_mirrors("python", Configuration(), {}, environ) == ("https://uv.example",)
    assert list_mirrors("python", Configuration(), {}, {}) == (VENDORS["python"],)
    assert list_mirrors("python", config, {"python": "https://b.example"}, environ) == (
        "https://b.example",
    )


def test_an_invalid_mirror_is_refused_with_the_name_of_its_setting() -> None:
    environ = {"DANLU_MIRROR_PYTHON": "ftp://u:secret@x/y"}
    with pytest.raises(UsageError, match="DANLU_MIRROR_PYTHON: invalid mirror 'ftp://") as error:
        list_mirrors("python", Configuration(), {}, environ)
    assert "secret" not in error.value.message


def test_an_unknown_mirror_name_is_refused() -> None:
    with pytest.raises(MachineError, match="no mirror is configured for unknown"):
        list_mirrors("unknown", Configuration(), {}, {})


def write_npm(directory: Path, answer: str) -> dict[str, str]:
    """Write an npm that prints ``answer`` when it is started as danlu starts it."""
    program = directory / "npm"
    program.write_text(f'#!/bin/sh\n[ "$*" = "config get registry" ] && [ "$PWD" = / ] && {answer}')
    program.chmod(0o755)
    return {"PATH": f"{directory}:/usr/bin:/bin"}


def test_the_registry_of_npm_is_the_one_npm_is_configured_with(tmp_path: Path) -> None:
    environ = write_npm(tmp_path, "echo https://npm.example.org/all/")
    config = Configuration()
    assert list_mirrors("npm", config, {}, environ) == ("https://npm.example.org/all",)
    environ["NPM_CONFIG_REGISTRY"] = "https://other.example.org"
    assert list_mirrors("npm", config, {}, environ) == ("https://other.example.org",)


@pytest.mark.parametrize("answer", ["echo undefined", "exit 1", "echo file:///etc"])
def test_without_a_registry_the_settings_for_npm_are_named(tmp_path: Path, answer: str) -> None:
    with pytest.raises(MachineError, match="no mirror is configured for npm") as caught:
        list_mirrors("npm", Configuration(), {}, write_npm(tmp_path, answer))
    assert "DANLU_MIRROR_NPM or NPM_CONFIG_REGISTRY" in caught.value.hint
    with pytest.raises(MachineError):
        list_mirrors("npm", Configuration(), {}, {"PATH": str(tmp_path / "empty")})


@pytest.mark.parametrize(
    ("changed", "problem"),
    [
        ({"sha256": "00"}, "invalid sha256"),
        ({"path": "../x"}, "invalid path"),
        ({"path": "/etc/passwd"}, "invalid path"),
        ({"path": "https://evil.example/x"}, "invalid path"),
        ({"size": -1}, "invalid size"),
        ({}, ""),
    ],
)
def test_pins_that_danlu_never_wrote_are_found(changed: dict[str, object], problem: str) -> None:
    assert problem in find_archive_problem(pin(**changed))
