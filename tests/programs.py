"""Programs that tests need, and the command that installs a missing one."""

from __future__ import annotations

import os
import shutil

__all__ = ["SYSTEM_PATH", "has_program", "install_command", "lacking"]

SYSTEM_PATH = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"

#: What is installed by another call than that for most tests.
_COMMANDS = {"chromium": "scripts/setup.sh --notebook"}

_TUN_DEVICE = "/dev/net/tun"

#: What the distribution does not package.
UNPACKAGED = {
    **dict.fromkeys(("buildctl", "buildkitd"), "install BuildKit's release on PATH"),
    "npm": "install Node.js, with npm configured for a registry that this machine reaches",
}


def has_program(program: str) -> bool:
    """Return whether ``program`` is on the path, those for administrators included."""
    return shutil.which(program, path=SYSTEM_PATH) is not None


def install_command(program: str) -> str:
    """Return what installs ``program``: a command to run in the repository, or what to do."""
    return UNPACKAGED.get(program) or _COMMANDS.get(program, "scripts/setup.sh --tests")


def lacking(*needs: str) -> str:
    """Return the reason to skip what needs ``needs``; empty if nothing is missing.

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
            return f"no {name} here: {install_command(name)}"
    return ""
