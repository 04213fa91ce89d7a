"""Virtual environments for tests, with packages that danlu itself does not depend on."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from danlu.sources.pypi.indexes import IndexSettings, uv_environment
from danlu.sources.pypi.uv import find_uv
from danlu.util.locks import file_lock
from tests.conftest import ROOT

__all__ = ["NotSatisfiable", "make", "resolve", "uv"]

#: Seconds an environment nobody asked for is kept.
KEPT = 14 * 24 * 3600.0


class NotSatisfiable(Exception):
    """The requirements have no solution; the text is uv's message."""


def uv(*arguments: str, cwd: Path = ROOT) -> str:
    """Run uv under this machine's pip configuration; raises :class:`NotSatisfiable`."""
    result = subprocess.run(
        [str(find_uv()), *arguments],
        cwd=cwd,
        env=uv_environment(IndexSettings(), cwd),
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise NotSatisfiable(result.stderr)
    return result.stdout + result.stderr


def resolve(*requirements: str) -> str:
    """Resolve requirements to pins; raises :class:`NotSatisfiable` with uv's reason."""
    with TemporaryDirectory() as directory:
        expected = Path(directory, "requirements.in")
        expected.write_text("\n".join(requirements))
        return uv("pip", "compile", "--quiet", "--no-header", "--no-annotate", str(expected))


def make(name: str, requirements: Sequence[str], *, python: str = sys.executable) -> Path:
    """Return the virtual environment ``name`` with ``requirements``, created once for all runs.

    ``danlu`` and ``danlu[…]`` are this checkout, editable. It is below ``DANLU_TEST_HOME`` or the
    user's cache directory, called by its name and what is in it; raises :class:`NotSatisfiable`.
    """
    directory = _cache_directory() / f"{name}-{_environment_key(requirements, python)}"
    result = directory / ".made"
    with file_lock(directory.with_suffix(".lock")):
        if not result.exists():
            _install_requirements(directory, requirements, python)
        result.touch()
    _remove_unused_environments(directory.parent)
    return directory


def _cache_directory() -> Path:
    kept = os.environ.get("DANLU_TEST_HOME")
    if kept:
        return Path(kept).resolve() / "test-environments"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "danlu-tests" / "environments"


def _environment_key(requirements: Sequence[str], python: str) -> str:
    output = [python, sys.version, *sorted(requirements)]
    if any(map(_is_ours, requirements)):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        output += [str(ROOT), json.dumps(project, sort_keys=True)]
    return hashlib.sha256("\n".join(output).encode()).hexdigest()[:12]


def _is_ours(requirement: str) -> bool:
    return requirement.partition("[")[0] == "danlu"


def _install_requirements(place: Path, requirements: Sequence[str], python: str) -> None:
    shutil.rmtree(place, ignore_errors=True)
    uv("venv", "--quiet", "--python", python, str(place))
    expected: list[str] = []
    for requirement in requirements:
        if _is_ours(requirement):
            expected += ["-e", f"{ROOT}{requirement.removeprefix('danlu')}"]
        else:
            expected.append(requirement)
    uv("pip", "install", "--quiet", "--python", str(place / "bin" / "python"), *expected)


def _remove_unused_environments(base: Path) -> None:
    """Remove environments not used recently: every changed requirement creates a new one."""
    for result in base.glob("*/.made"):
        if time.time() - result.stat().st_mtime > KEPT:
            shutil.rmtree(result.parent, ignore_errors=True)
