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
    """No environment holds what was asked for; the text is what uv wrote."""


def uv(*arguments: str, cwd: Path = ROOT) -> str:
    """Run uv under this machine's pip configuration; raises :class:`NotSatisfiable`."""
    done = subprocess.run(
        [str(find_uv()), *arguments],
        cwd=cwd,
        env=uv_environment(IndexSettings(), cwd),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotSatisfiable(done.stderr)
    return done.stdout + done.stderr


def resolve(*requirements: str) -> str:
    """What these become, a line each; raises :class:`NotSatisfiable` with uv's reason."""
    with TemporaryDirectory() as place:
        wanted = Path(place, "requirements.in")
        wanted.write_text("\n".join(requirements))
        return uv("pip", "compile", "--quiet", "--no-header", "--no-annotate", str(wanted))


def make(name: str, requirements: Sequence[str], *, python: str = sys.executable) -> Path:
    """The virtual environment ``name`` with ``requirements``, made once for all runs.

    ``danlu`` and ``danlu[…]`` are this checkout, editable. It is below ``DANLU_TEST_HOME`` or the
    user's cache directory, called by its name and what is in it; raises :class:`NotSatisfiable`.
    """
    place = _base() / f"{name}-{_key(requirements, python)}"
    made = place / ".made"
    with file_lock(place.with_suffix(".lock")):
        if not made.exists():
            _fill(place, requirements, python)
        made.touch()
    _forget_unused(place.parent)
    return place


def _base() -> Path:
    kept = os.environ.get("DANLU_TEST_HOME")
    if kept:
        return Path(kept).resolve() / "test-environments"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "danlu-tests" / "environments"


def _key(requirements: Sequence[str], python: str) -> str:
    said = [python, sys.version, *sorted(requirements)]
    if any(map(_is_ours, requirements)):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
        said += [str(ROOT), json.dumps(project, sort_keys=True)]
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:12]


def _is_ours(requirement: str) -> bool:
    return requirement.partition("[")[0] == "danlu"


def _fill(place: Path, requirements: Sequence[str], python: str) -> None:
    shutil.rmtree(place, ignore_errors=True)
    uv("venv", "--quiet", "--python", python, str(place))
    wanted: list[str] = []
    for requirement in requirements:
        if _is_ours(requirement):
            wanted += ["-e", f"{ROOT}{requirement.removeprefix('danlu')}"]
        else:
            wanted.append(requirement)
    uv("pip", "install", "--quiet", "--python", str(place / "bin" / "python"), *wanted)


def _forget_unused(base: Path) -> None:
    """Remove environments not used recently: every changed requirement creates a new one."""
    for made in base.glob("*/.made"):
        if time.time() - made.stat().st_mtime > KEPT:
            shutil.rmtree(made.parent, ignore_errors=True)
