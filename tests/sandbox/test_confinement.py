"""The view of a program in a sandbox: each defence is tested separately, from inside.

System calls are in test_seccomp.py, for root and for an ordinary user of this machine, as here.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.sandbox import _linux, secrets
from danlu.sandbox.runtime_spec import CAPABILITIES
from danlu.sandbox.sandbox import Sandbox
from danlu.sandbox.types import Mount, ProcessSpec, RootFilesystem
from tests.sandbox.engine_defaults import MASKED, READ_ONLY
from tests.sandbox.namespace_process import busybox

pytestmark = [pytest.mark.real, pytest.mark.needs("busybox")]

Forked = Callable[[Callable[[], Any]], Any]

#: linux/capability.h
_NUMBERS = {
    "CAP_CHOWN": 0,
    "CAP_DAC_OVERRIDE": 1,
    "CAP_FOWNER": 3,
    "CAP_FSETID": 4,
    "CAP_KILL": 5,
    "CAP_SETGID": 6,
    "CAP_SETUID": 7,
    "CAP_SETPCAP": 8,
    "CAP_NET_BIND_SERVICE": 10,
    "CAP_SYS_CHROOT": 18,
    "CAP_MKNOD": 27,
    "CAP_AUDIT_WRITE": 29,
    "CAP_SETFCAP": 31,
}
#: What would reach the kernel or the machine: nobody inside may ever get these.
_POWERS = {
    "CAP_DAC_READ_SEARCH": 2,
    "CAP_NET_ADMIN": 12,
    "CAP_NET_RAW": 13,
    "CAP_SYS_MODULE": 16,
    "CAP_SYS_RAWIO": 17,
    "CAP_SYS_PTRACE": 19,
    "CAP_SYS_ADMIN": 21,
    "CAP_SYS_BOOT": 22,
    "CAP_SYS_TIME": 25,
    "CAP_BPF": 39,
}


def look(
    home: Path,
    script: str,
    *,
    network: bool = False,
    uid: int = 0,
    mounts: tuple[Mount, ...] = (),
    layers: tuple[Path, ...] = (),
) -> list[str]:
    """The lines that ``script`` prints inside; must be called in a namespace of danlu's."""
    base, work = home / "base", home / "work"
    if not base.exists():
        busybox(base)
    work.mkdir(exist_ok=True)
    lines: list[str] = []

    async def main() -> int:
        process = ProcessSpec(("/bin/sh", "-c", script), {"PATH": "/bin"}, uid=uid, gid=uid)
        root = RootFilesystem((base, *layers))
        return await Sandbox(work).run(
            process, root, mounts=mounts, network=network, on_line=lines.append
        )

    anyio.run(main)
    return lines


def status_of(lines: list[str]) -> Mapping[str, str]:
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def set_of(names: Mapping[str, int]) -> int:
    return sum(1 << number for number in names.values())


def test_capability_numbers_of_this_test_cover_the_bounding_set() -> None:
    assert set(_NUMBERS) == set(CAPABILITIES)
    assert not set(_NUMBERS.values()) & set(_POWERS.values())


@pytest.mark.parametrize("uid", [0, 1000])
def test_process_has_the_capabilities_of_its_user_and_a_filter(
    run_in_namespace: Forked, home: Path, uid: int
) -> None:
    status = status_of(run_in_namespace(lambda: look(home, "cat /proc/self/status", uid=uid)))
    held = set_of(_NUMBERS) if uid == 0 else 0
    assert int(status["CapBnd"], 16) == set_of(_NUMBERS)
    assert int(status["CapEff"], 16) == int(status["CapPrm"], 16) == held
    assert int(status["CapInh"], 16) == int(status["CapAmb"], 16) == 0
    assert status["Seccomp"] == "2"
    # sudo and ping of an image work (docs/architecture/sandbox.md).
    assert status["NoNewPrivs"] == "0"
    assert status["Uid"].split() == [str(uid)] * 4


def test_root_inside_is_the_account_that_runs_danlu(run_in_namespace: Forked, home: Path) -> None:
    script = "cat /proc/self/uid_map; echo > /owned/file"
    owned = home / "owned"
    owned.mkdir()
    mounts = (Mount("/owned", owned),)
    (first, *others) = run_in_namespace(lambda: look(home, script, mounts=mounts))
    inside, outside, count = (int(word) for word in first.split())
    # The fixture gives the home directory to the account.
    assert (inside, outside) == (0, home.stat().st_uid)
    assert (owned / "file").stat().st_uid == outside
    if outside == 0:
        # No user namespace (SECURITY.md, "If you are root").
        assert (count, others) == (2**32 - 1, [])
    else:
        assert count == 1


@pytest.mark.parametrize("network", [False, True])
def test_masked_paths_are_empty(run_in_namespace: Forked, home: Path, network: bool) -> None:
    script = f"""
        for path in {" ".join(MASKED)}; do
            test -e $path && echo $path $(ls -A $path/ 2>/dev/null) $(head -c 9 $path 2>/dev/null)
        done; true"""
    result = run_in_namespace(lambda: look(home, script, network=network))
    # A name followed by nothing: no entries and no bytes.
    assert result == [path for path in MASKED if Path(path).exists()]
    assert result, "a kernel without any of them"


def test_masked_paths_are_mounts_of_their_own(run_in_namespace: Forked, home: Path) -> None:
    mounts = mounts_inside(run_in_namespace(lambda: look(home, "cat /proc/self/mountinfo")))
    for path in MASKED:
        if Path(path).exists():
            assert path in mounts, path
    for path in READ_ONLY:
        if Path(path).exists():
            assert "ro" in mounts[path], path


def test_kernel_settings_cannot_be_written(run_in_namespace: Forked, home: Path) -> None:
    script = """
        for file in /proc/sys/kernel/domainname /proc/sysrq-trigger /proc/sys/vm/drop_caches \\
            /proc/irq/default_smp_affinity /sys/kernel/profiling /sys/power/state
        do test -e $file && { (: > $file) 2>&1 || echo refused $file; }; done
        true"""
    lines = run_in_namespace(lambda: look(home, script))
    refused = {line.split()[1] for line in lines if line.startswith("refused ")}
    assert "/proc/sys/kernel/domainname" in refused
    assert ("/proc/sysrq-trigger" in refused) == Path("/proc/sysrq-trigger").exists()
    assert all("Read-only file system" in line for line in lines if not line.startswith("refused"))
    assert len(lines) == 2 * len(refused)


def mounts_inside(lines: list[str]) -> dict[str, set[str]]:
    """Mount points with their flags; the topmost of several at one place."""
    return {line.split()[4]: set(line.split()[5].split(",")) for line in lines}


@pytest.mark.parametrize("network", [False, True])
def test_mounts_carry_no_devices_and_no_setuid_programs(
    run_in_namespace: Forked, home: Path, network: bool
) -> None:
    lines = run_in_namespace(lambda: look(home, "cat /proc/self/mountinfo", network=network))
    mounts = mounts_inside(lines)
    assert "nodev" in mounts["/"]
    assert {"nosuid", "nodev", "noexec"} <= mounts["/proc"]
    assert {"nosuid", "nodev"} <= mounts["/dev"]
    assert {"nosuid", "noexec"} <= mounts["/dev/pts"]
    assert {"nosuid", "nodev", "noexec"} <= mounts["/dev/shm"]
    assert {"nosuid", "nodev", "noexec"} <= mounts["/dev/mqueue"]
    below_sys = [place for place in mounts if f"{place}/".startswith("/sys/")]
    assert "/sys" in below_sys
    for directory in below_sys:
        assert "ro" in mounts[directory], directory
    assert {"nosuid", "nodev", "noexec"} <= mounts["/sys"]


def test_given_mounts_have_no_devices_and_read_only_ones_are_so_all_the_way_down(
    run_in_namespace: Forked, home: Path
) -> None:
    def act() -> list[str]:
        value = home / "given"
        (value / "below").mkdir(parents=True)
        _linux.mount("tmpfs", str(value / "below"), "tmpfs")
        try:
            return look(
                home,
                "cat /proc/self/mountinfo; touch /ro/x /ro/below/x /kept/x && echo written",
                mounts=(
                    Mount("/ro", value, readonly=True),
                    Mount("/rw", value),
                    Mount("/memory", kind="tmpfs"),
                    Mount("/kept", kind="tmpfs", readonly=True),
                ),
            )
        finally:
            _linux.umount(str(value / "below"))

    lines = run_in_namespace(act)
    mounts = mounts_inside([line for line in lines if " - " in line])
    assert "written" not in lines
    assert {"ro", "nodev"} <= mounts["/ro"]
    assert "ro" in mounts["/ro/below"]
    assert {"rw", "nodev"} <= mounts["/rw"]
    assert {"rw", "nodev", "nosuid"} <= mounts["/memory"]
    assert {"ro", "nodev", "nosuid"} <= mounts["/kept"]


def test_devices_are_the_harmless_ones_only(run_in_namespace: Forked, home: Path) -> None:
    script = "cd /dev; for name in *; do stat -c '%n %F %t:%T' $name; done; stat -c %A pts/ptmx"
    *lines, ptmx = run_in_namespace(lambda: look(home, script))
    results = {line.split()[0]: line.split(None, 1)[1] for line in lines}
    devices = {
        name: text.rpartition(" ")[2] for name, text in results.items() if "character" in text
    }
    assert devices == {
        "null": "1:3",
        "zero": "1:5",
        "full": "1:7",
        "random": "1:8",
        "urandom": "1:9",
        "tty": "5:0",
    }
    assert set(results) - set(devices) == {
        *("core", "fd", "mqueue", "ptmx", "pts", "shm", "stderr", "stdin", "stdout"),
    }
    assert ptmx == "crw-rw-rw-"


def test_the_machine_is_not_visible_inside(run_in_namespace: Forked, home: Path) -> None:
    script = """
        hostname; pwd; ls -d /proc/[0-9]* | wc -l
        for name in pid ipc uts mnt net; do readlink /proc/self/ns/$name; done"""
    host, directory, processes, *namespaces = run_in_namespace(lambda: look(home, script))
    assert (host, directory) == ("danlu", "/")
    assert int(processes) < 10
    outside = {os.readlink(f"/proc/self/ns/{name}") for name in ("pid", "ipc", "uts", "mnt", "net")}
    assert len(namespaces) == 5
    assert not outside & set(namespaces)


def test_network_of_the_machine_is_shared_only_if_asked_for(
    run_in_namespace: Forked, home: Path
) -> None:
    script = "readlink /proc/self/ns/net"
    assert run_in_namespace(lambda: look(home, script, network=True)) == [
        os.readlink("/proc/self/ns/net")
    ]


def test_secrets_are_read_only_memory_and_gone_afterwards(
    run_in_namespace: Forked, home: Path
) -> None:
    def act() -> tuple[list[str], list[str], set[str], list[str]]:
        work = home / "secrets"
        work.mkdir()
        file = home / "token"
        file.write_text("hush")
        expected = [("token", "/run/secrets/token")]
        script = "cat /run/secrets/token /proc/self/mountinfo; echo x > /run/secrets/token"
        with secrets.mount_secrets(
            expected, {"token": file}, work=work, uid=1000, gid=1000
        ) as mounts:
            (mount,) = mounts
            assert mount.source is not None
            status = mount.source.stat()
            assert stat.S_IMODE(status.st_mode) == 0o400
            assert (status.st_uid, status.st_gid) == (1000, 1000)
            assert stat.S_IMODE(mount.source.parent.stat().st_mode) == 0o700
            outside = mounts_inside(Path("/proc/self/mountinfo").read_text().splitlines())
            flags = outside[str(mount.source.parent)]
            lines = look(home, script, uid=1000, mounts=mounts)
            other = look(home, "cat /run/secrets/token", uid=1001, mounts=mounts)
        assert not list(work.iterdir())
        left = Path("/proc/self/mountinfo").read_text()
        return lines, other, flags, [line for line in left.splitlines() if str(work) in line]

    lines, other, flags, remaining = run_in_namespace(act)
    assert lines[0].startswith("hush")
    inside = mounts_inside([line.removeprefix("hush") for line in lines if " - " in line])
    assert {"ro", "nodev"} <= inside["/run/secrets/token"]
    assert "Read-only file system" in lines[-1]
    assert "Permission denied" in other[0]
    assert {"nosuid", "nodev"} <= flags
    assert remaining == []
