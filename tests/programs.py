"""Programs that tests need, and the command that installs a missing one."""

from __future__ import annotations

import os
import shutil

__all__ = ["SYSTEM_PATH", "has_program", "install_command", "lacking"]

SYSTEM_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"

#: The commands for programs that `scripts/setup.sh --tests` does not install.
_COMMANDS = {"chromium": "scripts/setup.sh --notebook"}

_TUN_DEVICE = "/dev/net/tun"

#: Programs that the distribution does not package, and what to do instead.
UNPACKAGED = {
    **dict.fromkeys(("buildctl", "buildkitd"), "install BuildKit's release on PATH"),
    "impi_info": "install Intel MPI's runtime, for instance PyPI's impi-rt, on PATH",
    "mpichversion": "install MPICH, for instance PyPI's mpich, on PATH",
    "npm": "install Node.js, with npm configured for a registry that this machine reaches",
}


def has_program(program: str) -> bool:
    """Return whether ``program`` is on the path, those for administrators included."""
    return shutil.which(program, path=SYSTEM_PATH) is not None


def install_command(program: str) -> str:
    """Return how to install ``program``: a command to run in the repository, or an instruction."""
    return UNPACKAGED.get(program) or _COMMANDS.get(program, "scripts/setup.sh --tests")


def lacking(*needs: str) -> str:
    """Return the reason to skip a test that needs ``needs``; empty if nothing is missing.

    A need is a program, ``root``, or the device ``tun``, which udev opens to every account.
    """
    for name in needs:
        if name == "root":
            if os.geteuid() != 0:
                return "needs root"
        elif name == "tun":
            if not os.access(_TUN_DEVICE, os.R_OK | os.W_OK):
                return f"this account cannot open {_TUN_DEVICE}: sudo chmod 0666 {_TUN_DEVICE}"
        elif not has_program(name):
            return f"{name} not found: {install_command(name)}"
    return ""
