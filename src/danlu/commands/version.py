"""``danlu version``: danlu's own version and those of what it stands on."""

from __future__ import annotations

import platform
import shutil
import subprocess

from danlu import __version__

__all__ = ["versions"]

_PROGRAMS = {
    "runc": "--version",
    "crun": "--version",
    "git": "--version",
}


def versions() -> dict[str, str]:
    """Names and versions; an empty version is a program this machine lacks."""
    from importlib.metadata import PackageNotFoundError, version

    found = {
        "danlu": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    for name in ("uv", "starlark-pyo3", "zstandard"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            found[name] = ""
    for name, flag in _PROGRAMS.items():
        found[name] = _program_version(name, flag)
    return found


def _program_version(name: str, flag: str) -> str:
    path = shutil.which(name)
    if path is None:
        return ""
    try:
        done = subprocess.run([path, flag], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "does not start"
    lines = done.stdout.splitlines() or done.stderr.splitlines()
    words = (lines[0] if lines else "").split()
    return next((word for word in words if word[:1].isdigit()), words[-1] if words else "")
