"""Run a function in a forked child that has entered a namespace, as root or rootless."""

from __future__ import annotations

import ctypes
import os
import pickle
import pwd
import shutil
import signal
import stat
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TypeVar

from danlu.sandbox import _linux, userns
from danlu.util.paths import Paths
from tests.conftest import ROOT

T = TypeVar("T")

_FIRST_ID = 1 << 20
_PR_SET_DUMPABLE = 4

APPLETS = (
    *("sh", "cat", "chmod", "chown", "cp", "dd", "env", "false", "head", "hostname", "id", "ip"),
    *("grep", "kill", "ln", "ls", "mkdir", "mknod", "mount", "mv", "pwd", "rm", "rmdir", "sleep"),
    *("stat", "stty", "test", "touch", "true", "tty", "umount"),
)


def account() -> pwd.struct_passwd:
    """An ordinary user that every machine has; :func:`become_ordinary` lends it other ids."""
    return pwd.getpwnam("nobody")


def run_inside(
    function: Callable[[], T],
    *,
    home: Path,
    ordinary: bool,
    ids: bool = True,
    uid: int = 0,
    enter: Callable[[Paths], None] = userns.enter,
) -> T:
    """Run ``function`` in a forked child whose DANLU_HOME is ``home``; return its result.

    ``ordinary`` gives up root first, where this process has it, for an account that without ``ids``
    has no subordinate ones, and whose number is ``uid`` if given; ``enter`` makes the namespaces.
    """
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _run_child(function, write, home, (ordinary, ids, uid), enter)
    os.close(write)
    try:
        with os.fdopen(read, "rb") as file:
            data = file.read()
    finally:
        # It has ended, or the test's limit is over.
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    if not data:
        raise AssertionError("the child ended without a result")
    good, value = pickle.loads(data)
    if not good:
        raise AssertionError(value)
    result: T = value
    return result


def _run_child(
    function: Callable[[], T],
    write: int,
    home: Path,
    account: tuple[bool, bool, int],
    enter: Callable[[Paths], None],
) -> None:
    ordinary, ids, uid = account
    try:
        if ordinary and os.geteuid() == 0:
            become_ordinary(home, ids=ids, uid=uid)
        enter(Paths.of({"DANLU_HOME": str(home)}))
        data = pickle.dumps((True, function()))
    except BaseException:
        data = pickle.dumps((False, traceback.format_exc()))
    with os.fdopen(write, "wb") as file:
        file.write(data)
    os._exit(0)


def become_ordinary(home: Path, *, ids: bool = True, uid: int = 0) -> None:
    _linux.unshare(_linux.CLONE_NEWNS)
    _linux.mount("none", "/", flags=_linux.MS_REC | _linux.MS_SLAVE)
    user = _add_account(uid, home) if uid else account()
    _make_reachable(Path(sys.base_prefix), ROOT, Path(sys.prefix))
    for directory in (home, *home.parents):
        if directory.stat().st_mode & 0o001 == 0:
            directory.chmod(0o711)
    for path in (home, *home.rglob("*")):
        os.lchown(path, user.pw_uid, user.pw_gid)
    if ids:
        _lend_ids(user)
    _open_tun()
    os.setgroups([])
    os.setresgid(*[user.pw_gid] * 3)
    os.setresuid(*[user.pw_uid] * 3)
    # As after an exec: else /proc/self is root's, and no id map can be written in it.
    ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0)
    os.environ.update(HOME=str(home), USER=user.pw_name)


def _add_account(uid: int, home: Path) -> pwd.struct_passwd:
    """Add an account with that number, in this process's mount namespace only."""
    name = f"user{uid}"
    _extend_file(Path("/etc/passwd"), f"{name}:x:{uid}:{uid}::{home}:/bin/sh\n")
    _extend_file(Path("/etc/group"), f"{name}:x:{uid}:\n")
    return pwd.getpwnam(name)


def _extend_file(file: Path, line: str) -> None:
    """Show a file with one more line, in this process's mount namespace only."""
    # First, because the first entry with a number counts.
    with NamedTemporaryFile("w") as lent:
        lent.write(f"{line}{file.read_text()}")
        lent.flush()
        os.chmod(lent.name, 0o644)
        _linux.mount(lent.name, str(file), flags=_linux.MS_BIND)


def _lend_ids(user: pwd.struct_passwd) -> None:
    """Give ``user`` subordinate ids (subuid(5)) in this process's mount namespace only."""
    for file in (Path("/etc/subuid"), Path("/etc/subgid")):
        file.touch()
        with NamedTemporaryFile("w") as lent:
            lent.write(f"{user.pw_name}:{_FIRST_ID}:65536\n")
            lent.flush()
            os.chmod(lent.name, 0o644)
            _linux.mount(lent.name, str(file), flags=_linux.MS_BIND)


def _open_tun() -> None:
    """Show ``/dev/net/tun`` as udev makes it, open to all, in this process's view only."""
    tun = Path("/dev/net/tun")
    if not tun.exists() or tun.stat().st_mode & 0o006 == 0o006:
        return
    _linux.mount("tmpfs", str(tun.parent), "tmpfs", 0, "mode=755")
    os.mknod(tun, stat.S_IFCHR, os.makedev(10, 200))
    tun.chmod(0o666)


def _make_reachable(*directories: Path) -> None:
    """Make these readable although a parent (``/root``) is closed, for this process."""
    closed = {directory: _closed_above(directory) for directory in directories}
    handles = [
        (directory, os.open(directory, os.O_PATH)) for directory in directories if closed[directory]
    ]
    for top in {tops[-1] for tops in closed.values() if tops}:
        _linux.mount("tmpfs", str(top), "tmpfs", 0, "mode=755")
    for directory, handle in handles:
        directory.mkdir(parents=True, exist_ok=True)
        source = f"/proc/self/fd/{handle}"
        _linux.mount(source, str(directory), flags=_linux.MS_BIND | _linux.MS_REC)
        os.close(handle)


def _closed_above(directory: Path) -> list[Path]:
    return [parent for parent in directory.parents if parent.stat().st_mode & 0o001 == 0]


def busybox(tree: Path) -> Path:
    """A root file system of one static program, about 2 MB."""
    program = shutil.which("busybox")
    assert program is not None, "a test that asks for this needs busybox"
    (tree / "bin").mkdir(parents=True)
    (tree / "etc").mkdir()
    shutil.copy(program, tree / "bin/busybox")
    for name in APPLETS:
        (tree / "bin" / name).symlink_to("busybox")
    (tree / "etc/passwd").write_text(
        "root:x:0:0::/root:/bin/sh\nworker:x:1000:1000::/home:/bin/sh\n"
    )
    (tree / "etc/group").write_text("root:x:0:\nworker:x:1000:\nextra:x:50:worker\n")
    return tree
