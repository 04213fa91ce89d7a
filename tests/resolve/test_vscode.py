"""Extensions of VS Code, locked from an Open VSX registry, a directory and the project."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from danlu.environment.types import Environment, ProjectDigests
from danlu.errors import OutsideError, ResolveError, Span, UsageError
from danlu.lang.functions.vscode import EXTENSIONS, LockedExtension, VscodeExtensions
from danlu.sources.build_context import digest_path
from danlu.util.retry import RetryPolicy
from tests.fakes.openvsx import FakeExtensionRegistry, make_vsix, serve_registry
from tests.resolve.section_locker import SectionLocker

SPAN = Span("build.envd", 3)


@pytest.fixture
def registry() -> Iterator[FakeExtensionRegistry]:
    with serve_registry() as served:
        yield served


class ExtensionLocker(SectionLocker):
    """Locks extensions with a mirror."""

    def __init__(self, place: Path, mirror: str, architecture: str = "amd64") -> None:
        super().__init__(place, {"openvsx": mirror}, architecture)

    def declare_extensions(self, *names: str) -> Environment:
        return self.environment(VscodeExtensions(names, span=SPAN))

    def lock_extensions(
        self, *names: str, pins: tuple[LockedExtension, ...] = ()
    ) -> dict[str, LockedExtension]:
        result = self.lock(EXTENSIONS, VscodeExtensions(names, span=SPAN), pins=pins)
        return {pin.name: pin for pin in result}


@pytest.fixture
def locker(tmp_path: Path, registry: FakeExtensionRegistry) -> ExtensionLocker:
    return ExtensionLocker(tmp_path, registry.url)


def test_newest_version_is_locked_by_hash(
    locker: ExtensionLocker, registry: FakeExtensionRegistry
) -> None:
    registry.publish("ms-python.python", "2024.1.0", make_vsix("ms-python.python", "2024.1.0"))
    registry.publish("ms-python.python", "2024.8.1", make_vsix("ms-python.python", "2024.8.1"))
    (pin,) = locker.lock_extensions("ms-python.python").values()
    assert (pin.version, pin.mirror, pin.platform) == ("2024.8.1", "openvsx", "")
    assert pin.path == "api/ms-python/python/2024.8.1/file/ms-python.python-2024.8.1.vsix"
    assert registry.url not in repr(pin)


@pytest.mark.parametrize("name", ["ms-python.python-2024.1.0", "ms-python.python@2024.1.0"])
def test_named_version_is_locked(
    locker: ExtensionLocker, registry: FakeExtensionRegistry, name: str
) -> None:
    for version in ("2024.1.0", "2024.8.1"):
        registry.publish("ms-python.python", version, make_vsix("ms-python.python", version))
    assert locker.lock_extensions(name)["ms-python.python"].version == "2024.1.0"


def test_dependencies_and_members_of_packs_are_locked(
    locker: ExtensionLocker, registry: FakeExtensionRegistry
) -> None:
    pack = make_vsix("a.pack", "1.0.0", extensionPack=["a.one", "vscode.git"])
    registry.publish("a.pack", "1.0.0", pack)
    one = make_vsix("a.one", "2.0.0", extensionDependencies=["b.two", "a.pack"])
    registry.publish("a.one", "2.0.0", one)
    registry.publish("b.two", "3.0.0", make_vsix("b.two", "3.0.0"))
    pins = locker.lock_extensions("a.pack")
    assert {pin.name: pin.requested for pin in pins.values()} == {
        "a.pack": "a.pack",
        "a.one": "",
        "b.two": "",
    }
    assert pins["a.one"].requires == ("b.two", "a.pack")


def test_dependency_takes_the_version_that_is_asked_for(
    locker: ExtensionLocker, registry: FakeExtensionRegistry
) -> None:
    registry.publish("a.pack", "1.0.0", make_vsix("a.pack", "1.0.0", extensionPack=["a.one"]))
    for version in ("1.0.0", "2.0.0"):
        registry.publish("a.one", version, make_vsix("a.one", version))
    assert locker.lock_extensions("a.pack", "a.one-1.0.0")["a.one"].version == "1.0.0"


def test_dependency_is_satisfied_by_a_file_of_the_project(
    locker: ExtensionLocker, registry: FakeExtensionRegistry
) -> None:
    registry.publish("a.pack", "1.0.0", make_vsix("a.pack", "1.0.0", extensionPack=["a.one"]))
    newer = make_vsix("a.one", "2.0.0", extensionDependencies=["b.two"])
    registry.publish("a.one", "2.0.0", newer)
    registry.publish("b.two", "1.0.0", make_vsix("b.two", "1.0.0"))
    (locker.project / "one.vsix").write_bytes(make_vsix("a.one", "1.0.0"))
    for names in (("a.pack", "one.vsix"), ("one.vsix", "a.pack")):
        pins = locker.lock_extensions(*names)
        assert set(pins) == {"a.pack", "a.one"}, "without what another version needs"
        assert (pins["a.one"].version, pins["a.one"].mirror) == ("1.0.0", "")


@pytest.mark.parametrize(
    ("architecture", "platform", "text"),
    [("amd64", "linux-x64", "x64"), ("arm64", "linux-arm64", "arm64")],
)
def test_file_for_the_platform_is_taken(
    tmp_path: Path, registry: FakeExtensionRegistry, architecture: str, platform: str, text: str
) -> None:
    for target in ("win32-x64", "linux-x64", "linux-arm64"):
        data = make_vsix("a.one", "1.0.0", files={"extension/target": target})
        registry.publish("a.one", "1.0.0", data, platform=target)
    (pin,) = ExtensionLocker(tmp_path, registry.url, architecture).lock_extensions("a.one").values()
    assert pin.platform == platform
    assert pin.path.endswith(f"a.one-1.0.0@linux-{text}.vsix")
    assert pin.directory == f"a.one-1.0.0-linux-{text}"


def test_extension_without_a_file_for_the_platform_is_refused(
    locker: ExtensionLocker, registry: FakeExtensionRegistry
) -> None:
    registry.publish("a.one", "1.0.0", make_vsix("a.one", "1.0.0"), platform="darwin-arm64")
    with pytest.raises(ResolveError, match="has no build for linux-x64") as caught:
        locker.lock_extensions("a.one")
    assert "darwin-arm64" in caught.value.hint
    assert caught.value.span == SPAN


def test_locked_versions_are_kept_without_the_registry(
    locker: ExtensionLocker, registry: FakeExtensionRegistry
) -> None:
    registry.publish("a.one", "1.0.0", make_vsix("a.one", "1.0.0", extensionPack=["a.two"]))
    registry.publish("a.two", "1.0.0", make_vsix("a.two", "1.0.0"))
    pins = locker.lock_extensions("a.one")
    registry.publish("a.one", "9.0.0", make_vsix("a.one", "9.0.0"))
    registry.requests.clear()
    assert locker.lock_extensions("a.one", pins=tuple(pins.values())) == pins
    assert not registry.requests


def test_directory_of_files_is_a_mirror(tmp_path: Path) -> None:
    files = tmp_path / "files"
    files.mkdir()
    (files / "a.one-1.2.3.vsix").write_bytes(make_vsix("a.one", "1.2.3"))
    locker = ExtensionLocker(tmp_path, str(files))
    assert locker.lock_extensions("a.one-1.2.3")["a.one"].version == "1.2.3"
    with pytest.raises(ResolveError, match=r"a\.one not found") as caught:
        locker.lock_extensions("a.one")
    assert "name a version" in caught.value.hint


def test_file_of_the_project_is_locked_and_stale_when_it_changes(locker: ExtensionLocker) -> None:
    file = locker.project / "mine.vsix"
    file.write_bytes(make_vsix("me.mine", "0.1.0"))
    pins = tuple(locker.lock_extensions("mine.vsix").values())
    assert (pins[0].name, pins[0].version, pins[0].mirror) == ("me.mine", "0.1.0", "")
    environment = locker.declare_extensions("mine.vsix")
    digests = ProjectDigests({"mine.vsix": digest_path(locker.project, "mine.vsix")})
    assert not EXTENSIONS.is_outdated(environment, pins, digests)
    file.write_bytes(make_vsix("me.mine", "0.2.0"))
    digests = ProjectDigests({"mine.vsix": digest_path(locker.project, "mine.vsix")})
    assert EXTENSIONS.is_outdated(environment, pins, digests)


def test_damaged_file_of_the_project_is_not_blamed_on_a_mirror(locker: ExtensionLocker) -> None:
    (locker.project / "mine.vsix").write_bytes(b"junk")
    with pytest.raises(UsageError, match="cannot read mine") as caught:
        locker.lock_extensions("mine.vsix")
    assert "the file in the project is damaged" in caught.value.hint


def test_changed_list_of_names_is_stale(
    locker: ExtensionLocker, registry: FakeExtensionRegistry
) -> None:
    registry.publish("a.one", "1.0.0", make_vsix("a.one", "1.0.0"))
    pins = tuple(locker.lock_extensions("a.one").values())
    assert EXTENSIONS.is_stale(locker.declare_extensions("a.one", "a.two"), pins)
    assert EXTENSIONS.is_stale(locker.declare_extensions(), pins)


def test_unknown_extension_and_version_are_refused(
    locker: ExtensionLocker, registry: FakeExtensionRegistry
) -> None:
    registry.publish("a.one", "1.0.0", make_vsix("a.one", "1.0.0"))
    with pytest.raises(ResolveError, match=r"extension a\.two not found") as caught:
        locker.lock_extensions("a.two")
    assert caught.value.span == SPAN
    with pytest.raises(ResolveError, match=r"extension a\.one 2\.0\.0 not found"):
        locker.lock_extensions("a.one-2.0.0")


def test_two_versions_of_one_extension_are_refused(
    locker: ExtensionLocker, registry: FakeExtensionRegistry
) -> None:
    for version in ("1.0.0", "2.0.0"):
        registry.publish("a.one", version, make_vsix("a.one", version))
    with pytest.raises(ResolveError, match=r"in version 2\.0\.0, and in version 1\.0\.0"):
        locker.lock_extensions("a.one-1.0.0", "a.one-2.0.0")


def test_registry_that_is_down_is_an_outside_error_without_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("danlu.sources.http._RETRY_POLICY", RetryPolicy(4, 0.001))
    locker = ExtensionLocker(tmp_path, "http://user:secret@127.0.0.1:1")
    with pytest.raises(OutsideError) as caught:
        locker.lock_extensions("a.one")
    output = f"{caught.value.message} {caught.value.hint} {caught.value.details}"
    assert "secret" not in output
    assert "[mirrors.openvsx]" in output


HOSTILE: list[tuple[str, bytes]] = [
    ("not that of Open VSX", b"<html>"),
    ("another extension", json.dumps({"namespace": "b", "name": "x", "version": "1.0.0"}).encode()),
    (
        "another extension",
        json.dumps({"namespace": "a", "name": "one", "version": "../../etc"}).encode(),
    ),
]


@pytest.mark.parametrize(("message", "answer"), HOSTILE)
def test_hostile_answer_of_a_registry_is_refused(
    locker: ExtensionLocker, registry: FakeExtensionRegistry, message: str, answer: bytes
) -> None:
    registry.pages["api/a/one"] = answer
    with pytest.raises(OutsideError, match=message):
        locker.lock_extensions("a.one")


FILES: list[tuple[str, bytes]] = [
    ("cannot read", b"no zip"),
    ("contains b.other 1.0.0", make_vsix("b.other", "1.0.0")),
    ("contains a.one 6.6.6", make_vsix("a.one", "6.6.6")),
    ("invalid name or version", make_vsix("a.one", "1.0.0", publisher="../..")),
    ("is not an extension", make_vsix("a.one", "1.0.0", extensionPack="a.two")),
]


@pytest.mark.parametrize(("message", "data"), FILES, ids=[row[0] for row in FILES])
def test_file_that_is_not_the_extension_is_refused(
    locker: ExtensionLocker, registry: FakeExtensionRegistry, message: str, data: bytes
) -> None:
    registry.publish("a.one", "1.0.0", data)
    with pytest.raises(OutsideError, match=message):
        locker.lock_extensions("a.one")


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../x.y"},
        {"version": "1/2"},
        {"sha256": "0"},
        {"path": "../x.vsix"},
        {"platform": "../.."},
        {"mirror": "npm"},
    ],
)
def test_pin_that_was_edited_is_refused(changes: dict[str, str]) -> None:
    pin = LockedExtension("a.one", "1.0.0", "openvsx", "api/a/one/x.vsix", "0a" * 32, 3)
    assert EXTENSIONS.find_problem(pin) == ""
    assert EXTENSIONS.find_problem(replace(pin, **changes))
