"""What this machine has and lacks for building and running, with what to do about each."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from typing import NamedTuple

from danlu.errors import DanluError, MachineError
from danlu.sandbox import probe, runtime, userns
from danlu.sandbox.types import SYSTEM_PATH
from danlu.util.paths import Paths

__all__ = ["Finding", "check"]


class Finding(NamedTuple):
    """One thing that was looked at; ``fix`` is a line to type, empty where all is well."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


def check(paths: Paths | None = None) -> list[Finding]:
    """Look at everything, in the order in which it is needed; changes nothing on the machine.

    ``paths`` says where the store is (default: where the environment says). Mounts are tried in
    a forked child, so this process stays as it was; it must have no threads.
    """
    tests: list[Callable[[Paths], Finding]] = [
        _kernel,
        _runtime,
        _util_linux,
        _newuidmap,
        _subordinate_ids,
        _namespaces,
        _overlay,
        _apt,
    ]
    where = paths or Paths.of()
    return [test(where) for test in tests]


def _kernel(paths: Paths) -> Finding:
    release = os.uname().release
    numbers = [int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit()]
    ok = tuple(numbers) >= (5, 12)
    fix = "" if ok else "use Linux 5.12 or newer"
    return Finding("kernel", ok, f"Linux {release}", fix)


def _runtime(paths: Paths) -> Finding:
    try:
        found = runtime.find()
    except MachineError as error:
        return Finding("OCI runtime", False, error.message, error.hint)
    return Finding("OCI runtime", True, found.program)


def _util_linux(paths: Paths) -> Finding:
    return _programs("namespace tools", ("setpriv", "unshare"), "util-linux")


def _newuidmap(paths: Paths) -> Finding:
    if os.geteuid() == 0:
        return Finding("newuidmap", True, "not needed: this is root")
    return _programs("newuidmap", ("newuidmap", "newgidmap"), "uidmap")


def _programs(name: str, programs: tuple[str, ...], package: str) -> Finding:
    missing = [program for program in programs if shutil.which(program, path=_path()) is None]
    if missing:
        fix = f"sudo apt-get install {package}"
        return Finding(name, False, f"{' and '.join(missing)} not found", fix)
    return Finding(name, True, str(shutil.which(programs[0], path=_path())))


def _path() -> str:
    return f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"


def _subordinate_ids(paths: Paths) -> Finding:
    name = "subordinate ids"
    if os.geteuid() == 0:
        return Finding(name, True, "not needed: this is root")
    try:
        count = userns.subordinate_count()
    except MachineError as error:
        return Finding(name, False, error.message, error.hint)
    ok = count >= 65535
    fix = "" if ok else "give the account at least 65536 ids in /etc/subuid and /etc/subgid"
    return Finding(name, ok, f"{count} users", fix)


def _namespaces(paths: Paths) -> Finding:
    return _tried("namespaces", probe.enter_namespaces, paths)


def _overlay(paths: Paths) -> Finding:
    return _tried("overlay mounts", probe.mount_overlay, paths)


def _tried(name: str, test: Callable[[Paths], str], paths: Paths) -> Finding:
    try:
        return Finding(name, True, test(paths))
    except DanluError as error:
        return Finding(name, False, error.message, error.hint)


def _apt(paths: Paths) -> Finding:
    return _programs("apt (for os= and system packages)", ("apt-get",), "apt")
