"""The bundle of a container, as a runtime reads it: prepared in a namespace of the test's own."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from danlu.errors import MachineError, StoreError
from danlu.sandbox import netns, overlay, prepare, userns
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.network_env import NetworkEnvironment
from danlu.sandbox.prepare import ContainerSpec, MountPoint, create_mount_points
from danlu.sandbox.types import ContainerEdits, JoinedNetwork, Mount, ProcessSpec, RootFilesystem
from tests.sandbox.conftest import Inside
from tests.sandbox.engine_defaults import MASKED
from tests.sandbox.trees import read, write


@contextmanager
def prepared(home: Path, process: ProcessSpec | None = None, **changes: Any) -> Iterator[Path]:
    """The bundle of a container whose only layer has a shell and a user's file."""
    layer = write(home / "layer", {"bin/sh": "shell", "etc/passwd": "", "etc/ca": "own"})
    work = home / "work"
    work.mkdir(exist_ok=True)
    seccomp = changes.pop("seccomp", "")
    options = {"root": RootFilesystem((layer,)), "network": False, **changes}
    spec = ContainerSpec(process or ProcessSpec(("x",)), **options)
    with prepare.prepare_bundle(spec, work=work, seccomp=seccomp) as bundle:
        yield bundle
    assert list(work.iterdir()) == []


def configuration(bundle: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((bundle / "config.json").read_bytes())
    return found


def shown_files(config: dict[str, Any]) -> dict[str, str]:
    """What the files that are mounted in the container contain, by their place."""
    return {
        mount["destination"]: Path(mount["source"]).read_text()
        for mount in config["mounts"]
        if Path(mount["source"]).is_file()
    }


def test_configuration_is_private_and_has_each_defence(inside: Inside, home: Path) -> None:
    def act() -> tuple[int, dict[str, Any]]:
        os.umask(0)
        with prepared(home) as bundle:
            return stat.S_IMODE((bundle / "config.json").stat().st_mode), configuration(bundle)

    mode, config = inside(act)
    assert mode == 0o600, "it contains the environment, which may contain secrets"
    assert config["hostname"] == "danlu"
    assert set(config["linux"]["maskedPaths"]) == set(MASKED)
    assert config["linux"]["seccomp"]["defaultAction"] == "SCMP_ACT_ERRNO"
    assert {"type": "network"} in config["linux"]["namespaces"]
    assert "hooks" not in config


def test_filter_and_size_of_shared_memory_are_applied(inside: Inside, home: Path) -> None:
    def act() -> dict[str, Any]:
        with prepared(home, seccomp="unconfined", shm_size=4096) as bundle:
            return configuration(bundle)

    config = inside(act)
    assert "seccomp" not in config["linux"]
    (memory,) = (item for item in config["mounts"] if item["destination"] == "/dev/shm")
    assert "size=4096" in memory["options"]


def test_names_are_those_of_the_network(inside: Inside, home: Path) -> None:
    joined = JoinedNetwork(
        Path("/run/n"), "worker-0", {"worker-1": "10.0.0.2"}, "nameserver 10.0.0.1"
    )

    def act() -> list[tuple[dict[str, str], dict[str, Any]]]:
        os.umask(0o077)
        found = []
        for number, network in enumerate((False, True, joined)):
            with prepared(home / str(number), network=network) as bundle:
                for name in ("hosts", "resolv.conf"):
                    assert stat.S_IMODE((bundle / name).stat().st_mode) == 0o644
                config = configuration(bundle)
                found.append((shown_files(config), config))
        return found

    (alone, _), (shared, shared_config), (named, named_config) = inside(act)
    assert alone["/etc/resolv.conf"] == ""
    assert alone["/etc/hosts"].startswith("127.0.0.1 localhost danlu\n")
    assert shared["/etc/resolv.conf"] == Path("/etc/resolv.conf").read_text()
    assert shared["/etc/hosts"].startswith("127.0.0.1 danlu\n")
    assert not [item for item in shared_config["linux"]["namespaces"] if item["type"] == "network"]
    assert named["/etc/resolv.conf"] == "nameserver 10.0.0.1"
    assert named["/etc/hosts"].endswith("10.0.0.2 worker-1\n")
    assert named_config["hostname"] == "worker-0"
    assert {"type": "network", "path": "/run/n"} in named_config["linux"]["namespaces"]
    for mount in named_config["mounts"]:
        if mount["destination"].startswith("/etc/"):
            assert "ro" in mount["options"]


def test_what_the_network_needs_comes_with_it_and_the_image_wins(
    inside: Inside, home: Path
) -> None:
    for name in ("ca", "conf"):
        (home / name).write_text("machine's")
    network_env = NetworkEnvironment(
        {"A": "machine", "B": "machine"},
        (Mount("/run/ca", home / "ca", readonly=True),),
        (Mount("/etc/ca", home / "ca"), Mount("/etc/conf", home / "conf")),
    )
    process = ProcessSpec(("x",), {"A": "own"})

    def act() -> list[dict[str, Any]]:
        found = []
        for number, network in enumerate((True, False)):
            with prepared(
                home / str(number), process, network=network, network_env=network_env
            ) as bundle:
                found.append(configuration(bundle))
        return found

    with_network, without = inside(act)
    places = [mount["destination"] for mount in with_network["mounts"]]
    assert {"/run/ca", "/etc/conf"} <= set(places)
    assert "/etc/ca" not in places
    assert with_network["process"]["env"] == ["A=own", "B=machine"]
    assert without["process"]["env"] == ["A=own"]
    assert not {"/run/ca", "/etc/conf"} & {mount["destination"] for mount in without["mounts"]}


def test_program_is_started_by_a_shell_only_if_the_image_has_one(
    inside: Inside, home: Path
) -> None:
    def act() -> list[list[str]]:
        with prepared(home, script='exec "$@"') as bundle:
            first = configuration(bundle)["process"]["args"]
        empty = RootFilesystem((write(home / "empty", {"x": "1"}),))
        with prepared(home, ProcessSpec(("y",)), script="s", root=empty) as bundle:
            return [first, configuration(bundle)["process"]["args"]]

    assert inside(act) == [["/bin/sh", "-c", 'exec "$@"', "danlu", "x"], ["y"]]


def test_links_and_files_of_a_device_are_in_the_root_but_in_no_layer(
    inside: Inside, home: Path
) -> None:
    edits = ContainerEdits(
        links={"/usr/lib/l.so": "l.so.1", "/etc/ca": "elsewhere"}, files={"/etc/new": b"text"}
    )

    def act() -> tuple[dict[str, str], dict[str, str], int]:
        os.umask(0o077)
        with prepared(home, edits=edits) as bundle:
            root = Path(configuration(bundle)["root"]["path"])
            shown = {name: text.split()[-1] for name, text in read(root).items()}
            mode = stat.S_IMODE((root / "etc/new").stat().st_mode)
        return shown, read(home / "layer"), mode

    shown, layer, mode = inside(act)
    assert shown["usr/lib/l.so"] == "->l.so.1"
    assert shown["etc/ca"] == "->elsewhere"
    assert (shown["etc/new"], mode) == ("text", 0o644)
    assert shown["bin/sh"] == "shell"
    assert layer["etc/ca"].endswith(" own")
    assert "etc/new" not in layer


def test_user_that_is_not_mapped_is_refused(inside: Inside, home: Path) -> None:
    def act() -> str:
        if not userns.is_rootless():
            return "every id is mapped"
        with (
            pytest.raises(MachineError) as caught,
            prepared(home, ProcessSpec(("x",), uid=1 << 30)),
        ):
            pass
        return caught.value.message

    assert "id" in inside(act)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EIO])
def test_full_disk_is_named_and_nothing_is_left(
    inside: Inside, home: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(number, os.strerror(number), "/store/x")

    monkeypatch.setattr(overlay, "mount_root", fail)

    def act() -> tuple[str, str, list[Path]]:
        with pytest.raises((StoreError, OSError)) as caught, prepared(home):
            pass
        return type(caught.value).__name__, str(caught.value), list((home / "work").iterdir())

    kind, message, left = inside(act)
    assert (kind == "StoreError") is (number != errno.EIO)
    assert "/store/x" in message
    assert left == []


def test_parents_of_a_mount_point_look_as_in_the_layer_below(inside: Inside, home: Path) -> None:
    below = write(home / "below", {"srv/data/x": "1", "file": "2"})

    def act() -> dict[str, tuple[int, int, int]]:
        (below / "srv").chmod(0o2750)
        os.setxattr(below / "srv", "user.mark", b"m")
        layer = home / "points"
        layer.mkdir()
        view = LayerView([below])
        points = [
            MountPoint("/srv/new/deep", True, (7, 8)),
            MountPoint("/srv/data", True),
            MountPoint("/new", False),
        ]
        assert create_mount_points(view, points, layer)
        assert not create_mount_points(view, points, layer)
        assert os.getxattr(layer / "srv", "user.mark") == b"m"
        return {
            str(path.relative_to(layer)): (
                stat.S_IMODE(path.stat().st_mode),
                path.stat().st_uid,
                path.stat().st_gid,
            )
            for path in layer.rglob("*")
        }

    found = inside(act)
    if os.geteuid() != 0:
        found = {name: (mode, 0, 0) for name, (mode, _, _) in found.items()}
    owner = (7, 8) if os.geteuid() == 0 else (0, 0)
    assert found == {
        "srv": (0o2750, 0, 0),
        "srv/new": (0o755, *owner),
        "srv/new/deep": (0o755, 0, 0),
        "new": (0o644, 0, 0),
    }


# -- networks of jobs


def test_namespace_has_a_loopback_and_disappears(inside: Inside, home: Path) -> None:
    def act() -> tuple[bool, str, str, bool]:
        place = home / "net"
        netns.create_namespace(place)
        own = os.readlink("/proc/self/ns/net")
        other = netns.run_in_namespace(place, lambda: os.readlink("/proc/thread-self/ns/net"))
        flags = netns.run_in_namespace(place, lambda: Path("/proc/thread-self/net/dev").read_text())
        netns.remove_namespace(place)
        return own != other, flags, other, place.exists()

    differs, devices, _, left = inside(act)
    assert differs
    assert "lo:" in devices
    assert not left


def test_link_of_that_name_is_refused_and_a_missing_one_is_no_error(
    inside: Inside, home: Path
) -> None:
    def act() -> tuple[int | None, list[str]]:
        switch = home / "switch"
        netns.create_switch(switch)
        netns.detach_port(switch, "absent")

        def add_again() -> int | None:
            with netns.NetlinkSocket() as links:
                try:
                    links.add_bridge("switch", mtu=1500)
                except OSError as error:
                    return error.errno
            return None

        number = netns.run_in_namespace(switch, add_again)
        text = netns.run_in_namespace(switch, lambda: Path("/proc/thread-self/net/dev").read_text())
        netns.remove_namespace(switch)
        return number, [line.split(":")[0].strip() for line in text.splitlines()[2:]]

    number, links = inside(act)
    assert number == errno.EEXIST
    assert set(links) >= {"lo", "switch"}


def test_failure_in_a_namespace_reaches_the_caller(inside: Inside, home: Path) -> None:
    def act() -> bool:
        netns.create_namespace(home / "net")
        with pytest.raises(ZeroDivisionError):
            netns.run_in_namespace(home / "net", lambda: 1 // 0)
        with pytest.raises(FileExistsError):
            netns.create_namespace(home / "net")
        return (home / "net").exists()

    assert inside(act)


def test_mounting_the_root_leaves_no_open_file(inside: Inside, home: Path) -> None:
    def act() -> tuple[int, int]:
        layer = write(home / "layer", {"f": "1"})
        before = len(os.listdir("/proc/self/fd"))
        with overlay.mount_root(RootFilesystem((layer,)), home):
            pass
        return before, len(os.listdir("/proc/self/fd"))

    before, after = inside(act)
    assert after == before


def test_namespaces_of_a_switch_reach_each_other(inside: Inside, home: Path) -> None:
    def act() -> tuple[bytes, str]:
        switch = home / "switch"
        netns.create_switch(switch)
        for number in (2, 3, 3):  # the last is restarted, under the same name
            place = home / f"net{number}"
            if place.exists():
                netns.remove_namespace(place)
            netns.create_namespace(place)
            netns.connect_to_switch(
                place,
                switch,
                port=f"port{number}",
                address=f"10.9.0.{number}",
                prefix=24,
                gateway="10.9.0.1",
            )
        server = netns.run_in_namespace(
            home / "net2", lambda: socket.create_server(("10.9.0.2", 0))
        )
        client = netns.run_in_namespace(
            home / "net3", lambda: socket.create_connection(server.getsockname(), timeout=30)
        )
        connection, (address, _) = server.accept()
        connection.sendall(b"hello")
        received = client.recv(5)
        for file in (connection, client, server):
            file.close()
        routes = netns.run_in_namespace(
            home / "net3", lambda: Path("/proc/thread-self/net/route").read_text()
        )
        gateways = [
            line.split()[2] for line in routes.splitlines()[1:] if line.split()[1] == "0" * 8
        ]
        assert address == "10.9.0.3"
        for name in ("net2", "net3", "switch"):
            netns.remove_namespace(home / name)
        return received, gateways[0]

    assert inside(act) == (b"hello", "0100090A")
