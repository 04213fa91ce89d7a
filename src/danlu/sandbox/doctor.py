"""Check what this machine has and lacks for building and running, and what to do about it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from danlu.errors import DanluError, MachineError
from danlu.sandbox import netns, overlay, runtime, userns
from danlu.sandbox.types import SYSTEM_PATH
from danlu.util.config import load_configuration
from danlu.util.paths import Paths


class CheckResult(NamedTuple):
    """The result of one check; ``fix`` is what to do, empty if everything is fine."""

    name: str
    ok: bool
    detail: str
    fix: str = ""


def run_checks(paths: Paths | None = None) -> list[CheckResult]:
    """Run all checks, in the order in which things are needed, without changing the machine.

    ``paths`` says where the store is (default: from the environment). Mounts are tried in a forked
    child, so this process, which must have no threads, stays as it was.
    """
    tests: list[Callable[[Paths], CheckResult]] = [
        _check_kernel,
        _check_runtime,
        _check_util_linux,
        _check_newuidmap,
        _check_subordinate_ids,
        _check_namespaces,
        _check_overlay,
        _check_network,
        _check_apt,
    ]
    where = paths or Paths.of()
    return [test(where) for test in tests]


def _check_kernel(paths: Paths) -> CheckResult:
    release = os.uname().release
    numbers = [int(part) for part in release.split("-")[0].split(".")[:2] if part.isdigit()]
    # 5.12 has mount_setattr(2), which makes cgroups read-only.
    ok = tuple(numbers) >= (5, 12)
    fix = "" if ok else "use Linux 5.12 or newer"
    return CheckResult("kernel", ok, f"Linux {release}", fix)


def _check_runtime(paths: Paths) -> CheckResult:
    name = "OCI runtime"
    try:
        config = load_configuration(paths.config_file)
        oci_runtime = runtime.find_runtime(config.runtime)
        filtered = config.seccomp == "unconfined" or runtime.supports_seccomp(oci_runtime)
    except DanluError as error:
        return CheckResult(name, False, error.message, error.hint)
    if not filtered:
        return CheckResult(
            name,
            False,
            f"{oci_runtime.program} was built without seccomp, which danlu's containers need",
            'install another one (Debian: runc), or set `seccomp = "unconfined"` in config.toml',
        )
    return CheckResult(name, True, oci_runtime.program)


def _check_util_linux(paths: Paths) -> CheckResult:
    return _check_programs("namespace tools", ("setpriv", "unshare"), "util-linux")


def _check_newuidmap(paths: Paths) -> CheckResult:
    if os.geteuid() == 0:
        return CheckResult("newuidmap", True, "not needed: this is root")
    return _check_programs("newuidmap", ("newuidmap", "newgidmap"), "uidmap")


def _check_programs(name: str, programs: tuple[str, ...], package: str) -> CheckResult:
    missing = [
        program for program in programs if shutil.which(program, path=_search_path()) is None
    ]
    if missing:
        fix = f"sudo apt-get install {package}"
        return CheckResult(name, False, f"{' and '.join(missing)} not found", fix)
    return CheckResult(name, True, str(shutil.which(programs[0], path=_search_path())))


def _search_path() -> str:
    return f"{os.environ.get('PATH', '')}:{SYSTEM_PATH}"


def _check_subordinate_ids(paths: Paths) -> CheckResult:
    name = "subordinate ids"
    if os.geteuid() == 0:
        return CheckResult(name, True, "not needed: this is root")
    try:
        count = userns.subordinate_count()
    except MachineError as error:
        return CheckResult(name, False, error.message, error.hint)
    ok = count >= 65535
    fix = "" if ok else "give the account at least 65536 ids in /etc/subuid and /etc/subgid"
    return CheckResult(name, ok, f"{count} users", fix)


def _check_namespaces(paths: Paths) -> CheckResult:
    return _run_probe("namespaces", probe_namespaces, paths)


def _check_overlay(paths: Paths) -> CheckResult:
    return _run_probe("overlay mounts", probe_overlay, paths)


def _run_probe(name: str, test: Callable[[Paths], str], paths: Paths) -> CheckResult:
    try:
        return CheckResult(name, True, test(paths))
    except DanluError as error:
        return CheckResult(name, False, error.message, error.hint)


def _check_network(paths: Paths) -> CheckResult:
    name = "internet for jobs' containers"
    try:
        return CheckResult(name, True, netns.find_slirp_command()[-1])
    except MachineError as error:
        return CheckResult(name, False, error.message, error.hint)


def _check_apt(paths: Paths) -> CheckResult:
    return _check_programs("apt (for os= and system packages)", ("apt-get",), "apt")


def probe_namespaces(paths: Paths) -> str:
    """Enter namespaces in a child and describe them. Raises :class:`MachineError`."""

    def act() -> str:
        userns.enter(paths)
        return "single user" if userns.has_single_id() else "root in its own mount namespace"

    return _probe_in_child(act)


def probe_overlay(paths: Paths) -> str:
    """Mount an overlay in a child, where the store is or will be. Raises :class:`MachineError`."""
    existing = next(path for path in (paths.store, *paths.store.parents) if path.is_dir())

    def act() -> str:
        userns.enter(paths)
        with TemporaryDirectory(prefix=".danlu-doctor.", dir=existing) as directory:
            if overlay.supports_overlay(Path(directory)):
                return "layers are mounted"
        raise MachineError(
            f"cannot mount overlays at {existing}: layers will be copied, which is slow",
            hint="set DANLU_HOME to a directory on ext4, xfs or btrfs",
        )

    return _probe_in_child(act)


def _probe_in_child(act: Callable[[], str]) -> str:
    read, write = os.pipe()
    # A user namespace cannot be left again, so a child tries.
    child = os.fork()
    if child == 0:
        os.close(read)
        _report_and_exit(act, write)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    answer = json.loads(data) if data else {"message": "the child ended early", "hint": ""}
    if "detail" not in answer:
        raise MachineError(answer["message"], hint=answer["hint"])
    return str(answer["detail"])


def _report_and_exit(act: Callable[[], str], write: int) -> None:
    answer = {"message": "unknown", "hint": ""}
    try:
        answer = {"detail": act()}
    except DanluError as error:
        answer = {"message": error.message, "hint": error.hint}
    except Exception as error:
        answer = {"message": str(error), "hint": ""}
    finally:
        os.write(write, json.dumps(answer).encode())
        # Without exit handlers and buffered output, which belong to the parent.
        os._exit(0)
