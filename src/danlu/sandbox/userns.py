"""Enter namespaces of our own, so that mounts never leak and end with this process.

Root only needs a mount namespace. Anyone else also gets a user namespace, in which the account is
root and its subordinate ids (subuid(5)) are the other users; their mapping is written by the setuid
programs ``newuidmap`` and ``newgidmap``. An account without subordinate ids can still enter, with a
single id: :func:`has_single_id` reports that, and :func:`require_ids` rejects what needs more, with
the line to add.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from danlu.errors import MachineError
from danlu.sandbox import _linux
from danlu.sandbox.types import SYSTEM_PATH
from danlu.util.fork import run_in_child
from danlu.util.id_maps import (
    account_name,
    load_recorded_id_maps,
    read_id_maps,
    record_id_maps,
    suggest_usermod,
)

if TYPE_CHECKING:
    from danlu.util.paths import Paths

T = TypeVar("T")

_PROC = Path("/proc")

#: Settings that forbid user namespaces: the file, its value then, and the line that allows them.
_NAMESPACE_SETTINGS = (
    ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
    ("user/max_user_namespaces", "0", "user.max_user_namespaces=65536"),
)
#: Of Ubuntu 24.04: an ordinary user's namespaces exist, but give no rights.
_APPARMOR_SETTING = (
    "kernel/apparmor_restrict_unprivileged_userns",
    "1",
    "kernel.apparmor_restrict_unprivileged_userns=0",
)


class _IdRange(msgspec.Struct, frozen=True):
    """Subordinate ids ``start`` … ``start + count - 1`` on this machine."""

    start: int
    count: int


# State of enter(), set once: whether it was called, and why subordinate ids are missing.
_entered = False
_missing: MachineError | None = None


def enter(paths: Paths) -> None:
    """Make this very process root in its own mount namespace. Does nothing when called again.

    Must be called before any thread or event loop starts. ``paths`` names the store, which is
    rejected if it belongs to another account, because owners in its layers are that account's ids,
    or if it was created with subordinate ids that are not available now. Raises
    :class:`MachineError` for both, and if namespaces are forbidden.
    """
    global _entered
    if _entered:
        return
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("userns.enter() must be called before threads start")
    # Before any change: inside a user namespace owners appear as other ids.
    _check_owner(paths.store)
    if os.geteuid() == 0:
        _unshare_or_explain(_linux.CLONE_NEWNS)
    else:
        _enter_user_namespace()
        _keep_to_recorded_ids(paths.store)
    _keep_mounts_private()
    _hide_control_groups()
    _entered = True


def run_inside(paths: Paths, work: Callable[[], T]) -> T:
    """Return the result of ``work``, called in a child that has entered; this process has not.

    A supervisor or a program of another engine that is started later must not be in our namespaces.
    Forks, so this process must not have other threads. The result is pickled. Raises what
    :func:`enter` and ``work`` raise.
    """

    def enter_and_work() -> T:
        enter(paths)
        return work()

    return run_in_child(enter_and_work)


def has_entered() -> bool:
    """Return whether :func:`enter` was called, so that new mounts are private to this process."""
    return _entered


def is_rootless(proc: Path = _PROC) -> bool:
    """Return whether this process is root only in a user namespace, not on the machine."""
    return _read_first_map(proc) != (0, 0, 2**32 - 1)


def has_single_id() -> bool:
    """Return whether only one user is mapped, so that files cannot belong to anyone else."""
    with open("/proc/self/uid_map") as file:
        return sum(int(line.split()[2]) for line in file) == 1


def subordinate_count() -> int:
    """Return how many other users the account can have. Raises :class:`MachineError` if none."""
    arguments = _subordinate_maps()[0][4:]
    return sum(int(count) for count in arguments[2::3])


def require_ids(what: str) -> None:
    """Raise :class:`MachineError` if ``what`` needs several ids and only one is mapped.

    ``what`` is a phrase such as ``installing system packages``; the error contains the line to add.
    """
    if not has_single_id():
        return
    message = f"{what} needs subordinate user ids, but this account has none"
    if _missing is not None:
        raise MachineError(message, hint=_missing.hint, details=(_missing.message,))
    raise MachineError(message, hint="run danlu outside this user namespace")


def require_id(uid: int, gid: int) -> None:
    """Raise :class:`MachineError` for a user or group that is not mapped here."""
    if uid or gid:
        require_ids("running as another user than root")
    for name, number in (("user", uid), ("group", gid)):
        if not _has_mapping(name[0], number):
            raise MachineError(
                f"{name} {number} is outside the subordinate ids of this account",
                hint="give the account more ids in /etc/subuid and /etc/subgid",
            )


def _has_mapping(kind: str, number: int) -> bool:
    with open(f"/proc/self/{kind}id_map") as file:
        rows = [[int(word) for word in line.split()] for line in file]
    return any(inside <= number < inside + count for inside, _, count in rows)


def _check_owner(store: Path) -> None:
    try:
        owner = store.stat().st_uid
    except FileNotFoundError:
        return
    except PermissionError as error:
        raise MachineError(f"cannot read {store}", hint="check its owner with ls -ld") from error
    if owner != os.geteuid():
        raise MachineError(
            f"the store {store} belongs to user {owner}, but danlu runs as user {os.geteuid()}",
            hint="set DANLU_HOME to a directory of your own, or run danlu as that user",
        )


def _keep_to_recorded_ids(store: Path) -> None:
    """Reject a store whose owners would appear as other ids in this namespace; else record its ids.

    With other ids every layer with more than one owner would look damaged, and layers of new builds
    would be.
    """
    is_new = not store.is_dir()
    store.mkdir(parents=True, exist_ok=True, mode=0o700)
    maps, recorded = read_id_maps(), load_recorded_id_maps(store)
    if recorded is None:
        # A single id says nothing about the trees that an older version has created.
        if is_new or not has_single_id():
            record_id_maps(store, maps)
    elif maps.covers(recorded):
        if maps != recorded:
            record_id_maps(store, maps)
    else:
        what = f"the store {store} was created with subordinate ids that are not available now"
        if _missing is not None:
            raise MachineError(what, hint=_missing.hint, details=(_missing.message,))
        ranges = ", ".join(f"{first}-{first + count - 1}" for _, first, count in recorded.users[1:])
        raise MachineError(
            what,
            hint=f"restore the account's former ids ({ranges} in /etc/subuid, likewise in"
            " /etc/subgid), or set DANLU_HOME to another directory",
        )


def _read_first_map(proc: Path) -> tuple[int, int, int]:
    with open(proc / "self/uid_map") as file:
        inside, outside, count = (int(word) for word in file.readline().split())
    return inside, outside, count


def _keep_mounts_private() -> None:
    # Slave, not private: what the machine unmounts (a USB stick) is released here too.
    try:
        _linux.mount("none", "/", flags=_linux.MS_REC | _linux.MS_SLAVE)
    except OSError as error:
        raise explain_namespace_error(error) from error


def _hide_control_groups() -> None:
    # A runtime that cannot create cgroups runs without, and so leaves none behind when it is
    # killed. They would limit nothing: steps have no resource limits.
    with contextlib.suppress(OSError):
        _linux.set_readonly("/sys/fs/cgroup")


def _unshare_or_explain(flags: int) -> None:
    try:
        _linux.unshare(flags)
    except OSError as error:
        raise explain_namespace_error(error) from error


def _enter_user_namespace() -> None:
    global _missing
    uid, gid = os.geteuid(), os.getegid()
    try:
        maps = _subordinate_maps()
    except MachineError as error:
        _missing = error
        _unshare_or_explain(_linux.CLONE_NEWUSER | _linux.CLONE_NEWNS)
        _map_single_id(uid, gid)
    else:
        _unshare_with_maps(maps)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _map_single_id(uid: int, gid: int) -> None:
    # user_namespaces(7): setgroups must be denied before an unprivileged gid_map.
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {uid} 1"),
        ("gid_map", f"0 {gid} 1"),
    ):
        try:
            Path(f"/proc/self/{name}").write_text(text)
        except OSError as error:
            raise explain_namespace_error(error) from error


def _unshare_with_maps(maps: list[list[str]]) -> None:
    """Enter a new user namespace while a child that stays outside writes the id maps."""
    go_read, go_write = os.pipe()
    output_read, output_write = os.pipe()
    target = str(os.getpid())
    # The child stays in the parent namespace, where newuidmap checks the account's real ids.
    child = os.fork()
    if child == 0:
        _write_maps_and_exit(maps, target, go_read, go_write, output_write)
    os.close(go_read)
    os.close(output_write)
    try:
        _unshare_or_explain(_linux.CLONE_NEWUSER | _linux.CLONE_NEWNS)
        os.write(go_write, b"x")
    finally:
        os.close(go_write)
        message = b"".join(iter(lambda: os.read(output_read, 4096), b""))
        os.close(output_read)
        _, status = os.waitpid(child, 0)
    if status != 0:
        raise MachineError(
            "cannot map the subordinate ids of this account",
            hint="newuidmap and newgidmap must be setuid root: "
            "`sudo apt-get install --reinstall uidmap`; compare /etc/subuid and /etc/subgid",
            details=tuple(message.decode(errors="replace").splitlines()),
        )


def _write_maps_and_exit(
    maps: list[list[str]], target: str, go_read: int, go_write: int, output: int
) -> None:
    code = 1
    try:
        os.close(go_write)
        if os.read(go_read, 1) == b"x":
            os.dup2(output, 1)
            os.dup2(output, 2)
            code = 0
            for program, *ranges in maps:
                pid = os.posix_spawn(program, [program, target, *ranges], dict(os.environ))
                code = code or os.waitpid(pid, 0)[1]
    finally:
        os._exit(1 if code else 0)


def _subordinate_maps() -> list[list[str]]:
    """Return the two command lines that map root to the caller, and 1… to its subordinate ids."""
    name = account_name()
    maps = []
    for program, outside_id, file, flag in (
        ("newuidmap", os.geteuid(), "/etc/subuid", "-u"),
        ("newgidmap", os.getegid(), "/etc/subgid", "-g"),
    ):
        path = shutil.which(program) or shutil.which(program, path=SYSTEM_PATH)
        if path is None:
            raise MachineError(
                f"{program} is not installed",
                hint="install it: `sudo apt-get install uidmap` (Fedora: `shadow-utils`)",
            )
        ranges = _read_subid_file(file, name) or _query_getsubids(name, flag)
        if not ranges:
            raise MachineError(f"{file} has no line for {name}", hint=suggest_usermod(name))
        maps.append([path, *_map_arguments(outside_id, ranges)])
    return maps


def _map_arguments(own: int, ranges: list[_IdRange]) -> list[str]:
    arguments = ["0", str(own), "1"]
    inside = 1
    for id_range in ranges:
        arguments += [str(inside), str(id_range.start), str(id_range.count)]
        inside += id_range.count
    return arguments


def _read_subid_file(file: str, name: str) -> list[_IdRange]:
    """Return the ranges of ``name`` (or its uid) in a file in subuid(5) format."""
    try:
        with open(file) as lines:
            entries = [line.strip().split(":") for line in lines]
    except OSError:
        return []
    owners = (name, str(os.geteuid()))
    return [
        _IdRange(int(fields[1]), int(fields[2]))
        for fields in entries
        if len(fields) == 3 and fields[0] in owners and fields[1].isdigit() and fields[2].isdigit()
    ]


def _query_getsubids(name: str, flag: str) -> list[_IdRange]:
    """Return the ranges that a directory service has, by getsubids(1): ``0: name start count``."""
    # Rarely needed, and slow to import at a container start.
    from danlu.util.process_activity import run_program

    program = shutil.which("getsubids")
    if program is None:
        return []
    args = [program, *(["-g"] if flag == "-g" else []), name]
    completed = run_program(args)
    entries = [line.split() for line in completed.stdout.decode(errors="replace").splitlines()]
    return [
        _IdRange(int(fields[2]), int(fields[3]))
        for fields in entries
        if len(fields) == 4 and fields[2].isdigit() and fields[3].isdigit()
    ]


def explain_namespace_error(error: OSError, *, proc: Path = _PROC) -> MachineError:
    """Explain why the kernel refused namespaces, with the setting to change; ``proc`` is procfs."""
    is_root = os.geteuid() == 0 and not is_rootless(proc)
    if not is_root and _has_setting(_APPARMOR_SETTING, proc):
        return MachineError(
            "AppArmor keeps ordinary users from using user namespaces"
            " (kernel.apparmor_restrict_unprivileged_userns=1)",
            hint=f"{_format_sysctl_command(_APPARMOR_SETTING[2])}; or allow them only to danlu's"
            " Python, with an AppArmor profile (docs: Rootless setup, Ubuntu)",
        )
    for setting in _NAMESPACE_SETTINGS:
        if not is_root and _has_setting(setting, proc):
            return MachineError(
                "this machine does not allow unprivileged users to create namespaces",
                hint=_format_sysctl_command(setting[2]),
            )
    if os.geteuid() == 0 and error.errno == errno.EPERM:
        return MachineError(
            "root is not allowed to mount here",
            hint="this looks like a container: start it with --privileged"
            " (or with CAP_SYS_ADMIN and no seccomp and AppArmor profile)",
        )
    return MachineError(
        f"cannot create namespaces: {error.strerror}",
        hint="in a container, start it with --privileged; run `danlu doctor` for details",
    )


def _has_setting(setting: tuple[str, str, str], proc: Path) -> bool:
    name, closed, _ = setting
    try:
        return (proc / "sys" / name).read_text().strip() == closed
    except OSError:
        return False


def _format_sysctl_command(line: str) -> str:
    return f"echo '{line}' | sudo tee /etc/sysctl.d/60-danlu.conf && sudo sysctl --system"
