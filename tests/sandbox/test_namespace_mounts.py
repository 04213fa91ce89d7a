"""Mounts of secrets, devices and layers in a namespace of the test's own, as any account.

Each defence is tested separately. What a program in a container sees of them is in
test_confinement.py.
"""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from danlu.errors import MachineError, UsageError
from danlu.sandbox import _linux, mounts, overlay, secrets, userns
from danlu.sandbox.types import DeviceNode, RootFilesystem
from tests.sandbox.conftest import Inside
from tests.sandbox.trees import GONE, read, write


def flags_of(place: Path) -> set[str]:
    """The flags of the mount at ``place``, empty if there is none."""
    flags: set[str] = set()
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[4] == str(place):
            flags = set(fields[5].split(","))
    return flags


# -- secrets


def test_secret_is_private_memory_and_gone_afterwards(inside: Inside, home: Path) -> None:
    file = home / "token"
    file.write_text("hush")

    def act() -> tuple[set[str], int, int, str, bool, bool, list[str]]:
        work = home / "work"
        work.mkdir()
        wanted = [("token", "/run/secrets/token")]
        owner = 0 if userns.has_single_id() else 1000
        with secrets.mount_secrets(wanted, {"token": file}, work=work, uid=owner, gid=owner) as (
            mount,
        ):
            assert mount.source is not None
            status = mount.source.stat()
            assert (status.st_uid, status.st_gid) == (owner, owner)
            place = mount.source.parent
            found = (
                flags_of(place),
                stat.S_IMODE(status.st_mode),
                stat.S_IMODE(place.stat().st_mode),
                mount.source.read_text(),
                mount.readonly,
                mount.private,
            )
        return *found, [str(path) for path in work.iterdir()]

    flags, mode, directory_mode, text, readonly, private, left = inside(act)
    assert {"nosuid", "nodev"} <= flags
    assert (mode, directory_mode, text) == (0o400, 0o700, "hush")
    assert readonly
    assert private
    assert left == []


def test_secret_is_gone_after_a_failure_too(inside: Inside, home: Path) -> None:
    file = home / "token"
    file.write_text("hush")

    def act() -> list[str]:
        work = home / "work"
        work.mkdir()
        with (
            pytest.raises(ZeroDivisionError),
            secrets.mount_secrets([("token", "/t")], {"token": file}, work=work),
        ):
            raise ZeroDivisionError
        mounted = Path("/proc/self/mountinfo").read_text()
        return [*map(str, work.iterdir()), *(x for x in mounted.splitlines() if str(work) in x)]

    assert inside(act) == []


def test_secret_without_a_readable_value_is_refused(tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="missing value for the secret a, b"),
        secrets.mount_secrets([("b", "/b"), ("a", "/a")], {}, work=tmp_path),
    ):
        pass
    for path in (tmp_path / "missing", tmp_path):
        with (
            pytest.raises(UsageError, match="cannot read the file of the secret a"),
            secrets.mount_secrets([("a", "/a")], {"a": path}, work=tmp_path),
        ):
            pass
    with secrets.mount_secrets([], {}, work=tmp_path) as nothing:
        assert nothing == ()
    assert list(tmp_path.iterdir()) == []


def test_agent_is_shown_read_only_and_never_a_key(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    for name in ("id_ed25519", "known_hosts"):
        (tmp_path / ".ssh" / name).touch()
    environ = {"HOME": str(tmp_path)}
    shown = secrets.agent_mounts(tmp_path / "socket", environ)
    assert [mount.source for mount in shown] == [
        tmp_path / "socket",
        tmp_path / ".ssh/known_hosts",
    ]
    assert all(mount.readonly for mount in shown)
    variables = secrets.agent_environment(environ)
    assert variables["SSH_AUTH_SOCK"] == shown[0].target
    assert shown[1].target in variables["GIT_SSH_COMMAND"]
    assert secrets.agent_environment({}) == {"SSH_AUTH_SOCK": shown[0].target}


# -- devices


def test_dev_has_the_harmless_devices_only(inside: Inside, home: Path) -> None:
    def act() -> tuple[set[str], dict[str, int], set[str], int, bool, bool]:
        with mounts.mount_devices(home / "devices") as here:
            devices = {
                path.name: path.stat().st_rdev
                for path in here.iterdir()
                if not path.is_symlink() and stat.S_ISCHR(path.stat().st_mode)
            }
            others = {path.name for path in here.iterdir()} - set(devices)
            (here / "null").write_bytes(b"x")
            shared = stat.S_IMODE((here / "shm").stat().st_mode)
            changed = False
            if not userns.is_rootless():
                before = os.stat("/dev/null").st_mode
                (here / "null").chmod(0o600)
                changed = os.stat("/dev/null").st_mode != before
            flags = flags_of(here)
        return flags, devices, others, shared, changed, (home / "devices/dev").exists()

    flags, devices, others, shared, changed, left = inside(act)
    assert {"nosuid", "nodev"} <= flags
    assert devices == {
        name: os.stat(f"/dev/{name}").st_rdev
        for name in ("null", "zero", "full", "random", "urandom", "tty")
    }
    assert others == {
        *("core", "fd", "mqueue", "ptmx", "pts", "shm", "stderr", "stdin", "stdout"),
    }
    assert shared == 0o1777
    assert not changed, "the machine's own device got the mode of the container's"
    assert not left


@pytest.mark.parametrize(
    "path",
    [
        "/dev/null",
        "/dev/pts/1",
        "/dev/fd",
        "/dev/../etc/x",
        "/etc/x",
        "/dev/a//b",
        "/dev/",
        "/dev/./null",
    ],
)
def test_device_cannot_replace_one_of_the_container_or_lie_outside(
    inside: Inside, home: Path, path: str
) -> None:
    def act() -> str:
        device = DeviceNode(path, Path("/dev/zero"))
        with (
            pytest.raises(MachineError) as caught,
            mounts.mount_devices(home / "devices", [device]),
        ):
            pass
        return caught.value.message

    assert path in inside(act)


def test_given_device_is_a_node_of_its_own(inside: Inside, home: Path) -> None:
    def act() -> tuple[int, int, bool]:
        device = DeviceNode("/dev/a/b", Path("/dev/zero"), mode=0o640)
        with mounts.mount_devices(home / "devices", [device]) as here:
            status = (here / "a/b").stat()
            return stat.S_IMODE(status.st_mode), status.st_rdev, userns.is_rootless()

    mode, number, rootless = inside(act)
    assert number == os.stat("/dev/zero").st_rdev
    # Without root the node is the machine's, whose mode cannot be changed.
    assert rootless or mode == 0o640


def test_only_device_nodes_can_be_given(inside: Inside, home: Path) -> None:
    (home / "file").touch()

    def act() -> list[str]:
        messages = []
        for number, source in enumerate((home / "file", home / "missing")):
            with (
                pytest.raises(MachineError) as caught,
                mounts.mount_devices(home / str(number), [DeviceNode("/dev/x", source)]),
            ):
                pass
            messages.append(caught.value.message)
        return messages

    first, second = inside(act)
    assert "not a device node" in first
    assert "No such file" in second


def layer_with_a_device(home: Path) -> Path:
    layer = write(home / "layer", {"f": "1"})
    os.mknod(layer / "zero", 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    return layer


def is_dead(device: Path) -> bool:
    try:
        device.open("rb").close()
    except PermissionError:
        return True
    return False


@pytest.mark.needs("root")
def test_device_node_of_a_layer_does_not_work_in_an_overlay(inside: Inside, home: Path) -> None:
    def act() -> bool:
        with overlay.mount_root(RootFilesystem((layer_with_a_device(home),)), home) as merged:
            return is_dead(merged / "zero")

    assert inside(act)


@pytest.mark.needs("root")
def test_device_node_of_a_layer_does_not_work_in_a_copy(inside: Inside, home: Path) -> None:
    def act() -> bool:
        target = home / "target"
        target.mkdir()
        with overlay.copy_and_mount((layer_with_a_device(home),), target, upper=None):
            return is_dead(target / "zero")

    assert inside(act)


def test_root_of_a_container_has_no_devices(inside: Inside, home: Path) -> None:
    layer = write(home / "layer", {"f": "1"})

    def act() -> tuple[set[str], set[str], int]:
        target = home / "target"
        target.mkdir(mode=0o700)
        with overlay.copy_and_mount((layer,), target, upper=None):
            copied, mode = flags_of(target), stat.S_IMODE(target.stat().st_mode)
        with overlay.mount_root(RootFilesystem((layer,)), home) as merged:
            return copied, flags_of(merged), mode

    copied, mounted, mode = inside(act)
    assert "nodev" in copied
    assert "nodev" in mounted
    assert mode == 0o755


@pytest.mark.parametrize("count", [1, 40])
def test_older_kernel_mounts_the_layers_too(
    inside: Inside, home: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    layers = tuple(write(home / f"layer{n}", {f"f{n}": "1", "top": str(n)}) for n in range(count))

    def refuse(*arguments: object, **options: object) -> None:
        raise OSError(errno.ENOSYS, "no such system call")

    class LateThread(threading.Thread):
        """Runs only when it is waited for."""

        def start(self) -> None:
            pass

        def join(self, timeout: float | None = None) -> None:
            super().start()
            super().join(timeout)

    monkeypatch.setattr(_linux, "mount_overlay", refuse)
    monkeypatch.setattr(threading, "Thread", LateThread)

    def act() -> tuple[dict[str, str], set[str], str]:
        directory = os.getcwd()
        with overlay.mount_root(RootFilesystem(layers), home) as merged:
            found, flags = read(merged), flags_of(merged)
        assert os.getcwd() == directory
        return found, flags, found["top"].split()[-1]

    found, flags, top = inside(act)
    assert len(found) == count + 1
    assert top == str(count - 1)
    assert "nodev" in flags


# -- copies of layers, for where no overlay can be mounted


def copy_layers(home: Path, *layers: Mapping[str, object]) -> dict[str, str]:
    target = home / "target"
    target.mkdir()
    for number, entries in enumerate(layers):
        overlay.copy_layer(write(home / f"layer{number}", entries), target)
    return {name: text.split()[-1] for name, text in read(target).items()}


@pytest.mark.parametrize("kind", ["relative", "absolute", "loop"])
def test_copy_of_a_directory_over_a_link_does_not_follow_it(
    inside: Inside, home: Path, kind: str
) -> None:
    def act() -> tuple[dict[str, str], dict[str, str]]:
        outside = write(home / "outside", {"secret": "untouched"})
        target = {"relative": "../outside", "absolute": str(outside), "loop": "d"}[kind]
        found = copy_layers(home, {"d": f"->{target}"}, {"d/secret": "hostile"})
        return found, read(outside)

    result, outside = inside(act)
    assert result["d/secret"] == "hostile"
    assert not result["d"].startswith("->")
    assert [text.split()[-1] for text in outside.values()] == ["untouched"]


def test_copy_of_a_link_over_a_directory_replaces_it(inside: Inside, home: Path) -> None:
    def act() -> dict[str, str]:
        write(home / "outside", {"secret": "untouched"})
        return copy_layers(home, {"d/a": "1"}, {"d": "->../outside"})

    assert inside(act) == {"d": "->../outside"}


def test_whiteouts_and_opaque_directories_hide_what_is_below(inside: Inside, home: Path) -> None:
    def act() -> dict[str, str]:
        return copy_layers(
            home,
            {"a": "1", "b/x": "1", "c/x": "1", "d/x": "1"},
            {"a": GONE, "b": GONE, "c/": "opaque", "c/y": "2", "d/y": "2"},
        )

    found = inside(act)
    assert set(found) == {"c", "c/y", "d", "d/x", "d/y"}


def test_copy_keeps_modes_times_attributes_and_hard_links(inside: Inside, home: Path) -> None:
    def act() -> tuple[int, int, bytes, bool, bool]:
        layer = write(home / "layer", {"program": "1", "d/x": "2"})
        (layer / "program").chmod(0o4755)
        os.setxattr(layer / "program", "user.mark", b"m")
        os.setxattr(layer / "d", "user.overlay.opaque", b"y")
        os.link(layer / "program", layer / "same")
        for path in (layer / "program", layer / "d"):
            os.utime(path, ns=(5, 7))
        target = home / "target"
        target.mkdir()
        overlay.copy_layer(layer, target)
        first, second = (target / "program").stat(), (target / "same").stat()
        return (
            stat.S_IMODE(first.st_mode),
            first.st_mtime_ns + (target / "d").stat().st_mtime_ns,
            os.getxattr(target / "program", "user.mark"),
            first.st_ino == second.st_ino,
            "user.overlay.opaque" in os.listxattr(target / "d"),
        )

    assert inside(act) == (0o4755, 14, b"m", True, False)


def change_copy(
    home: Path, change: Callable[[Path], None], **earlier: object
) -> tuple[dict[str, str], dict[str, str]]:
    """The changes to a copy of a layer as they are recorded, and the layer afterwards."""
    layer = write(
        home / "layer",
        {
            "keep": "1",
            "edit": "1",
            "drop": "1",
            "d/x": "1",
            "d/y": "1",
            "e/f/g": "1",
            "l": "->keep",
        },
    )
    upper = write(home / "upper", earlier)
    target = home / "target"
    target.mkdir()
    with overlay.copy_and_mount((layer,), target, upper=upper):
        change(target)
    return read(upper), read(layer)


def names_of(tree: Mapping[str, str]) -> dict[str, str]:
    """Kind and content of each entry: ``gone``, ``directory``, ``directory opaque`` or a text."""
    words = {name: text.split() for name, text in tree.items()}
    return {
        name: " ".join([found[0], *found[3:]]) if found[0] == "directory" else found[-1]
        for name, found in words.items()
    }


def test_changes_to_a_copy_are_recorded_as_an_overlay_would(inside: Inside, home: Path) -> None:
    def change(root: Path) -> None:
        (root / "edit").write_text("2")
        (root / "drop").unlink()
        (root / "new/a").mkdir(parents=True)
        (root / "new/a/b").write_text("2")
        (root / "d/y").unlink()
        (root / "d/z").write_text("2")
        (root / "e/f/h").write_text("2")
        (root / "l").unlink()
        (root / "l").symlink_to("edit")

    upper, layer = inside(lambda: change_copy(home, change))
    assert names_of(upper) == {
        "edit": "2",
        "drop": "gone",
        "new": "directory",
        "new/a": "directory",
        "new/a/b": "2",
        "d": "directory",
        "d/y": "gone",
        "d/z": "2",
        "e": "directory",
        "e/f": "directory",
        "e/f/h": "2",
        "l": "->edit",
    }
    assert {text.split()[-1] for name, text in layer.items() if "file" in text} == {"1"}


def test_a_recreated_directory_of_a_copy_is_opaque(inside: Inside, home: Path) -> None:
    def change(root: Path) -> None:
        for name in ("x", "y"):
            (root / "d" / name).unlink()
        (root / "d").rmdir()
        (root / "d").mkdir()
        (root / "d/x").write_text("2")

    upper, _ = inside(lambda: change_copy(home, change))
    assert names_of(upper) == {"d": "directory opaque", "d/x": "2"}


def test_a_directory_of_a_copy_becomes_a_file_and_the_reverse(inside: Inside, home: Path) -> None:
    def change(root: Path) -> None:
        (root / "e/f/g").unlink()
        (root / "e/f").rmdir()
        (root / "e/f").write_text("2")
        (root / "drop").unlink()
        (root / "drop").mkdir()

    upper, _ = inside(lambda: change_copy(home, change))
    found = names_of(upper)
    assert found["e/f"] == "2"
    assert "e/f/g" not in found
    assert found["drop"].startswith("directory")


def test_what_the_upper_had_stays_and_an_unchanged_copy_records_nothing(
    inside: Inside, home: Path
) -> None:
    upper, _ = inside(lambda: change_copy(home, lambda root: None, earlier="0"))
    assert names_of(upper) == {"earlier": "0"}
