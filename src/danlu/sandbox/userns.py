"""Become root of a namespace of our own: mounts of this process never leak and end with it.

Real root only gets a mount namespace. Anyone else gets a user namespace too, in which the account
is root and its subordinate ids (subuid(5)) are the other users; the ids are written by the
setuid programs ``newuidmap`` and ``newgidmap``. An account without them still enters, with
one id: :func:`single_id` says so, and :func:`require_ids` refuses what needs more, with the
line to add.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu.errors import MachineError
from danlu.sandbox import _linux
from danlu.sandbox.types import SYSTEM_PATH

if TYPE_CHECKING:
    from danlu.util.paths import Paths

__all__ = [
    "caller",
    "enter",
    "entered",
    "require_id",
    "require_ids",
    "single_id",
    "subordinate_count",
    "unprivileged",
]

_SUBIDS = 65536
_PROC_SYS = Path("/proc/sys")


class _Range(msgspec.Struct, frozen=True):
    """Subordinate ids ``start`` … ``start + count - 1`` of this machine."""

    start: int
    count: int


# What enter() found and the ids it hides; filled once, by enter().
_caller: tuple[int, int] | None = None
_entered = False
_missing: MachineError | None = None


def enter(paths: Paths) -> None:
    """Make this very process root of its own mounts; nothing it mounts outlives it.

    Must be called before any thread or event loop starts; a second call does nothing. ``paths``
    names the store: one that belongs to another account is refused, because the owners in its
    layers mean that account's ids. Raises :class:`MachineError` where namespaces are forbidden.
    """
    global _caller, _entered
    if _entered:
        return
    if len(os.listdir("/proc/self/task")) > 1:
        raise RuntimeError("userns.enter() must be called before threads start")
    _check_owner(paths.store)
    if _caller is None:
        _caller = (os.geteuid(), os.getegid())
    if os.geteuid() == 0:
        _unshare(_linux.CLONE_NEWNS)
    else:
        _enter_user_namespace()
    _keep_mounts_private()
    _hide_control_groups()
    _entered = True


def entered() -> bool:
    """Whether :func:`enter` was called, so that mounts made now are ours alone."""
    return _entered


def caller() -> tuple[int, int]:
    """The user and group id that called danlu, as this machine knows them."""
    return _caller or (os.geteuid(), os.getegid())


def unprivileged() -> bool:
    """Whether this process is root of a user namespace only, not of the machine."""
    return _first_map() != (0, 0, 2**32 - 1)


def single_id() -> bool:
    """Whether there is one user only: no file can belong to anyone else."""
    with open("/proc/self/uid_map") as file:
        return sum(int(line.split()[2]) for line in file) == 1


def subordinate_count() -> int:
    """How many other users this account can have; raises :class:`MachineError` where none."""
    words = _subordinate_maps()[0][4:]
    return sum(int(count) for count in words[2::3])


def require_ids(what: str) -> None:
    """Refuse ``what`` (a phrase: ``installing system packages``) where there is one id only.

    Raises :class:`MachineError` with the line to add.
    """
    if not single_id():
        return
    message = f"{what} needs subordinate user ids, and this account has none"
    if _missing is not None:
        raise MachineError(message, hint=_missing.hint, details=(_missing.message,))
    raise MachineError(message, hint="run danlu outside this user namespace")


def require_id(uid: int, gid: int) -> None:
    """Refuse a user or a group that has no id here; raises :class:`MachineError`."""
    if uid or gid:
        require_ids("running as another user than root")
    for name, number in (("user", uid), ("group", gid)):
        if not _is_mapped(name[0], number):
            raise MachineError(
                f"{name} {number} is not among the subordinate ids of this account",
                hint="give the account more ids in /etc/subuid and /etc/subgid",
            )


def _is_mapped(kind: str, number: int) -> bool:
    with open(f"/proc/self/{kind}id_map") as file:
        rows = [[int(word) for word in line.split()] for line in file]
    return any(inside <= number < inside + count for inside, _, count in rows)


def _check_owner(store: Path) -> None:
    try:
        owner = store.stat().st_uid
    except FileNotFoundError:
        return
    except PermissionError as error:
        raise MachineError(f"{store} cannot be read", hint="see who owns it: ls -ld") from error
    if owner != os.geteuid():
        raise MachineError(
            f"the store {store} belongs to user {owner}, and this is user {os.geteuid()}",
            hint="set DANLU_HOME to a directory of your own, or run danlu as that user",
        )


def _first_map() -> tuple[int, int, int]:
    with open("/proc/self/uid_map") as file:
        inside, outside, count = (int(word) for word in file.readline().split())
    return inside, outside, count


def _keep_mounts_private() -> None:
    # Slave, not private: what the machine unmounts (a stick, an automount) goes away here too.
    try:
        _linux.mount("none", "/", flags=_linux.MS_REC | _linux.MS_SLAVE)
    except OSError as error:
        raise _forbidden(error) from error


def _hide_control_groups() -> None:
    # A runtime that cannot make control groups runs without, and leaves none behind when it is
    # killed. They would limit nothing here: no step has resource limits.
    with contextlib.suppress(OSError):
        _linux.set_readonly("/sys/fs/cgroup")


def _unshare(flags: int) -> None:
    try:
        _linux.unshare(flags)
    except OSError as error:
        raise _forbidden(error) from error


def _enter_user_namespace() -> None:
    global _missing
    uid, gid = os.geteuid(), os.getegid()
    try:
        maps = _subordinate_maps()
    except MachineError as error:
        _missing = error
        _unshare(_linux.CLONE_NEWUSER | _linux.CLONE_NEWNS)
        _map_one(uid, gid)
    else:
        _unshare_with_maps(maps)
    os.setresgid(0, 0, 0)
    os.setresuid(0, 0, 0)


def _map_one(uid: int, gid: int) -> None:
    # user_namespaces(7): setgroups must be denied before an unprivileged gid_map.
    for name, text in (
        ("setgroups", "deny"),
        ("uid_map", f"0 {uid} 1"),
        ("gid_map", f"0 {gid} 1"),
    ):
        try:
            Path(f"/proc/self/{name}").write_text(text)
        except OSError as error:
            raise _forbidden(error) from error


def _unshare_with_maps(maps: list[list[str]]) -> None:
    """Leave for a new user namespace while a child that stays outside writes the id maps."""
    go_read, go_write = os.pipe()
    said_read, said_write = os.pipe()
    target = str(os.getpid())
    child = os.fork()
    if child == 0:
        _write_maps_and_exit(maps, target, go_read, go_write, said_write)
    os.close(go_read)
    os.close(said_write)
    try:
        _unshare(_linux.CLONE_NEWUSER | _linux.CLONE_NEWNS)
        os.write(go_write, b"x")
    finally:
        os.close(go_write)
        said = b"".join(iter(lambda: os.read(said_read, 4096), b""))
        os.close(said_read)
        _, status = os.waitpid(child, 0)
    if status != 0:
        raise MachineError(
            "the subordinate ids of this account could not be used",
            hint="newuidmap and newgidmap must be setuid root: "
            "`sudo apt-get install --reinstall uidmap`; compare /etc/subuid and /etc/subgid",
            details=tuple(said.decode(errors="replace").splitlines()),
        )


def _write_maps_and_exit(
    maps: list[list[str]], target: str, go_read: int, go_write: int, said: int
) -> None:
    code = 1
    try:
        os.close(go_write)
        if os.read(go_read, 1) == b"x":
            os.dup2(said, 1)
            os.dup2(said, 2)
            code = 0
            for program, *ranges in maps:
                pid = os.posix_spawn(program, [program, target, *ranges], dict(os.environ))
                code = code or os.waitpid(pid, 0)[1]
    finally:
        os._exit(1 if code else 0)


def _subordinate_maps() -> list[list[str]]:
    """The two command lines that map root to the caller and 1… to its subordinate ids."""
    name = _account_name()
    maps = []
    for program, own, file, flag in (
        ("newuidmap", os.geteuid(), "/etc/subuid", "-u"),
        ("newgidmap", os.getegid(), "/etc/subgid", "-g"),
    ):
        path = shutil.which(program) or shutil.which(program, path=SYSTEM_PATH)
        if path is None:
            raise MachineError(
                f"{program} is not installed",
                hint="install it: `sudo apt-get install uidmap` (Fedora: `shadow-utils`)",
            )
        ranges = _ranges(file, name) or _ranges_of_directory(name, flag)
        if not ranges:
            raise MachineError(f"{file} has no line for {name}", hint=_line_to_add(name))
        maps.append([path, *_map_words(own, ranges)])
    return maps


def _map_words(own: int, ranges: list[_Range]) -> list[str]:
    words = ["0", str(own), "1"]
    inside = 1
    for item in ranges:
        words += [str(inside), str(item.start), str(item.count)]
        inside += item.count
    return words


def _account_name() -> str:
    import pwd

    try:
        return pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        return str(os.geteuid())


def _ranges(file: str, name: str) -> list[_Range]:
    """The ranges of ``name`` (or of its number) in a file of subuid(5)'s form."""
    try:
        with open(file) as lines:
            words = [line.strip().split(":") for line in lines]
    except OSError:
        return []
    owners = (name, str(os.geteuid()))
    return [
        _Range(int(word[1]), int(word[2]))
        for word in words
        if len(word) == 3 and word[0] in owners and word[1].isdigit() and word[2].isdigit()
    ]


def _ranges_of_directory(name: str, flag: str) -> list[_Range]:
    """The ranges that a directory service knows, by getsubids(1): ``0: name start count``."""
    import subprocess

    program = shutil.which("getsubids")
    if program is None:
        return []
    args = [program, *(["-g"] if flag == "-g" else []), name]
    said = subprocess.run(args, capture_output=True, text=True, check=False)
    words = [line.split() for line in said.stdout.splitlines()]
    return [
        _Range(int(word[2]), int(word[3]))
        for word in words
        if len(word) == 4 and word[2].isdigit() and word[3].isdigit()
    ]


def _line_to_add(name: str) -> str:
    start = 100000
    for file in ("/etc/subuid", "/etc/subgid"):
        try:
            with open(file) as lines:
                fields = [line.strip().split(":") for line in lines]
        except OSError:
            continue
        ends = [int(f[1]) + int(f[2]) for f in fields if len(f) == 3 and f[1].isdigit()]
        start = max([start, *ends])
    last = start + _SUBIDS - 1
    return (
        f"sudo usermod --add-subuids {start}-{last} --add-subgids {start}-{last} {name}"
        f"  (the line {name}:{start}:{_SUBIDS} in /etc/subuid and in /etc/subgid)"
    )


def _forbidden(error: OSError) -> MachineError:
    """Why the kernel refused, with the setting to change."""
    setting = _closed_setting()
    if setting:
        return MachineError(
            "this machine does not let ordinary users make namespaces",
            hint=f"echo '{setting}' | sudo tee /etc/sysctl.d/60-danlu.conf && sudo sysctl --system",
        )
    if os.geteuid() == 0 and error.errno == errno.EPERM:
        return MachineError(
            "root may not make mounts here",
            hint="this looks like a container: start it with --privileged"
            " (or with CAP_SYS_ADMIN and no seccomp and AppArmor profile)",
        )
    return MachineError(
        f"this process may not make a namespace: {error.strerror}",
        hint="in a container, start it with --privileged; `danlu doctor` says more",
    )


def _closed_setting() -> str:
    """The sysctl that forbids user namespaces, as the line that would allow them."""
    if os.geteuid() == 0 and not unprivileged():
        return ""
    for name, closed, line in (
        ("kernel/unprivileged_userns_clone", "0", "kernel.unprivileged_userns_clone=1"),
        ("user/max_user_namespaces", "0", "user.max_user_namespaces=65536"),
        (
            "kernel/apparmor_restrict_unprivileged_userns",
            "1",
            "kernel.apparmor_restrict_unprivileged_userns=0",
        ),
    ):
        try:
            if (_PROC_SYS / name).read_text().strip() == closed:
                return line
        except OSError:
            continue
    return ""
