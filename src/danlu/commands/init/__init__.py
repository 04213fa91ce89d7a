"""``danlu init``: a build file for what a directory holds, so that ``danlu run`` works."""

from __future__ import annotations

from pathlib import Path

import msgspec

from danlu.commands.init.detect import detect, program_of, read_source
from danlu.commands.init.draft import Draft, render
from danlu.commands.init.machine import choose_base, here
from danlu.errors import OutsideError, UsageError

__all__ = ["InitReport", "init"]


class InitReport(msgspec.Struct, frozen=True):
    """What was written: the file, its text, where it is from, and what the user should know.

    ``guessed`` maps a distribution that was guessed from an import to the file that imports it;
    ``program`` is the file that one would run.
    """

    path: Path
    text: str
    source: str
    notes: tuple[str, ...] = ()
    guessed: dict[str, str] = {}
    program: str = ""


def init(
    directory: Path, *, source: Path | None = None, python: bool = False, force: bool = False
) -> InitReport:
    """Write ``build.envd`` (with ``python`` ``build.py``) for ``directory``.

    ``source`` is a file to make it from: a requirements file, ``pyproject.toml``, a conda
    environment file, a ``Dockerfile`` or a notebook; without it the directory tells. Raises
    :class:`UsageError` where there is a build file already (unless ``force``), or where
    ``source`` cannot be read.
    """
    from danlu.util.files import write_atomic

    path = directory / ("build.py" if python else "build.envd")
    _refuse_overwriting(directory, path, force=force)
    draft = Draft()
    wanted = read_source(source, directory, draft) if source else detect(directory, draft)
    if not draft.image:
        choose_base(draft, own=here(), wanted=wanted)
    text = render(draft, python=python)
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise OutsideError(f"cannot write {path}: {error.strerror}") from error
    program = program_of(directory, source)
    return InitReport(path, text, draft.source, tuple(draft.notes), dict(draft.guessed), program)


def _refuse_overwriting(directory: Path, path: Path, *, force: bool) -> None:
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory")
    for one in (path, directory / "build.envd", directory / "build.py"):
        if one.exists() and not (force and one == path):
            hint = "--force replaces it" if one == path else f"`danlu build` uses {one.name}"
            raise UsageError(f"there is a {one.name} already", hint=hint)
