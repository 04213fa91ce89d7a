"""Install the packages that failed checks need, if apt can."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterable

import msgspec

from danlu.diagnosis.doctor import DoctorCheck
from danlu.errors import MachineError, OutsideError

_INSTALL = re.compile(r"apt-get install ((?:(?:--reinstall|[a-z0-9][a-z0-9.+-]+)(?: |\b))+)")


class RepairPlan(msgspec.Struct, frozen=True):
    """The command that installs packages (empty if none can be), and the checks it leaves."""

    command: tuple[str, ...]
    remaining: tuple[DoctorCheck, ...]


def plan_installation(checks: Iterable[DoctorCheck], *, everything: bool = False) -> RepairPlan:
    """Return what to install for the failed checks; for optional ones only with ``everything``.

    Raises :class:`MachineError` if there is something to install, but neither apt nor a way to
    become root.
    """
    packages: list[str] = []
    remaining = []
    for check in checks:
        if check.ok or (check.optional and not everything):
            continue
        named = [
            word
            for match in _INSTALL.finditer(check.fix)
            for word in match[1].split()
            if not word.startswith("-")
        ]
        packages += named
        if not named:
            remaining.append(check)
    if not packages:
        return RepairPlan((), tuple(remaining))
    apt = shutil.which("apt-get")
    if apt is None:
        raise MachineError(
            f"apt-get not found: cannot install {', '.join(dict.fromkeys(packages))}",
            hint="install them with the package manager of this distribution",
        )
    prefix: tuple[str, ...] = ()
    if os.geteuid() != 0:
        sudo = shutil.which("sudo")
        if sudo is None:
            raise MachineError(
                f"only root can install {', '.join(dict.fromkeys(packages))}, and sudo is missing",
                hint="ask your administrator",
            )
        prefix = (sudo,)
    options = ("install", "--yes", "--no-install-recommends")
    command = (*prefix, apt, *options, *dict.fromkeys(packages))
    return RepairPlan(command, tuple(remaining))


def install_packages(command: tuple[str, ...], output: int) -> None:
    """Run the command, with its output to the descriptor ``output``.

    Raises :class:`OutsideError` if it fails.
    """
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    try:
        done = subprocess.run(command, stdout=output, env=environment, check=False)
    except OSError as error:
        raise OutsideError(f"cannot start {command[0]}: {error.strerror}") from error
    if done.returncode:
        raise OutsideError(
            f"apt-get failed with exit code {done.returncode}",
            hint="run `apt-get update` as root and try again",
        )
