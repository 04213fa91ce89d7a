"""Format build files with ruff: Starlark is written like Python, and envd formats its own so."""

from __future__ import annotations

import os
import re
import shutil
import stat
import subprocess
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import msgspec

from danlu.errors import BuildFileError, MachineError, Span, UsageError
from danlu.project.project import BUILD_FILES
from danlu.util.files import write_atomic
from danlu.util.sanitize import escape_unprintable

_TIMEOUT_SECONDS = 60
_SUFFIXES = (".envd", ".py")
_SYNTAX_ERROR = re.compile(r"[^\n]*?:(\d+):(\d+): (.*)")


class FormatReport(msgspec.Struct, frozen=True):
    """The files that were (or with ``check`` would be) changed, and the number of all."""

    changed: tuple[str, ...]
    total: int


def list_build_files(names: Sequence[str], directory: Path) -> list[Path]:
    """Return the files to format: those named, and the build files of directories.

    Without names they are those of ``directory``. Raises :class:`UsageError` for a name that is
    not a build file, and for a directory without build files.
    """
    files: list[Path] = []
    for name in names or (".",):
        path = directory / name
        if path.is_dir():
            own = [path / candidate for candidate in BUILD_FILES if (path / candidate).is_file()]
            files += sorted({*own, *(file for file in path.glob("*.envd") if file.is_file())})
        elif path.suffix not in _SUFFIXES:
            raise UsageError(f"{name} is not a build file", hint="name files *.envd or *.py")
        elif not path.is_file():
            raise UsageError(f"{name} not found", hint="name a build file or a directory")
        else:
            files.append(path)
    if not files:
        raise UsageError(
            "no build files found", hint="run `danlu init` to create one, or name the files"
        )
    return list(dict.fromkeys(files))


def format_files(files: Sequence[Path], directory: Path, *, check: bool) -> FormatReport:
    """Format files in place, or with ``check`` only find those that would change.

    All of them are formatted before the first is written. Raises :class:`BuildFileError` for a
    syntax error, :class:`MachineError` without ruff.
    """
    results: list[tuple[Path, bytes]] = []
    for path in files:
        before = path.read_bytes()
        after = format_text(before, os.path.relpath(path, directory), directory=path.parent)
        if after != before:
            results.append((path, after))
    if not check:
        for path, after in results:
            # The target of a link, which stays a link.
            real = path.resolve()
            write_atomic(real, after, mode=stat.S_IMODE(real.stat().st_mode))
    changed = tuple(os.path.relpath(path, directory) for path, _ in results)
    return FormatReport(changed, len(files))


def format_text(text: bytes, name: str, *, directory: Path) -> bytes:
    """Return the text of the build file ``name`` formatted.

    The settings in a pyproject.toml or ruff.toml of ``directory`` and above it apply.
    """
    arguments = ["format", "--no-cache", "--extension", "envd:python"]
    arguments += ["--stdin-filename", str(directory / Path(name).name), "-"]
    done = subprocess.run(
        [_find_ruff(), *arguments],
        input=text,
        capture_output=True,
        cwd=directory,
        timeout=_TIMEOUT_SECONDS,
        check=False,
    )
    if done.returncode == 0:
        return done.stdout
    message = done.stderr.decode(errors="replace").strip()
    found = _SYNTAX_ERROR.match(message)
    if found is None:
        raise UsageError(f"cannot format {name}", details=(escape_unprintable(message),))
    line, column = int(found[1]), int(found[2])
    lines = text.decode(errors="replace").splitlines()
    raise BuildFileError(
        f"syntax error: {found[3]}",
        span=Span(name, line, column),
        source_line=lines[line - 1] if line <= len(lines) else "",
    )


def _find_ruff() -> str:
    own = Path(sysconfig.get_path("scripts")) / "ruff"
    program = str(own) if own.is_file() else shutil.which("ruff")
    if program is None:
        raise MachineError(
            "ruff not found, which formats build files",
            hint="install ruff: `uv tool install ruff` or `pipx install ruff`",
        )
    return program
