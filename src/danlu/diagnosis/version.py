"""Versions of danlu and its dependencies."""

from __future__ import annotations

import platform
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError, version

from danlu import __version__

_VERSION_FLAGS = {
    "runc": "--version",
    "crun": "--version",
    "git": "--version",
}


def list_versions() -> dict[str, str]:
    """Return versions by name; the version of a missing program is empty."""
    versions = {
        "danlu": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
    }
    for name in ("uv", "starlark-pyo3", "zstandard"):
        try:
            versions[name] = version(name)
        except PackageNotFoundError:
            versions[name] = ""
    for name, flag in _VERSION_FLAGS.items():
        versions[name] = _program_version(name, flag)
    return versions


def _program_version(name: str, flag: str) -> str:
    path = shutil.which(name)
    if path is None:
        return ""
    try:
        done = subprocess.run([path, flag], capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return "cannot be started"
    lines = done.stdout.splitlines() or done.stderr.splitlines()
    words = (lines[0] if lines else "").split()
    return next((word for word in words if word[:1].isdigit()), words[-1] if words else "")
