"""Generate a build file for a project, so that ``danlu run`` works."""

from __future__ import annotations

from pathlib import Path

import msgspec

from danlu.convert.detect import detect_source, find_program, read_source
from danlu.convert.draft import BuildFileDraft, render_draft
from danlu.convert.host import choose_base, detect_release
from danlu.convert.team_template import (
    BUILD_FILES,
    parse_template_address,
    read_template,
    write_template,
)
from danlu.convert.template import render_template
from danlu.errors import OutsideError, UsageError
from danlu.util.files import write_atomic
from danlu.util.paths import Paths
from danlu.util.urls import mask_credentials

__all__ = ["InitReport", "init", "init_from_template"]


class InitReport(msgspec.Struct, frozen=True):
    """The generated build file, its source, and notes for the user.

    ``guessed`` maps distributions that were guessed from imports to the importing file; ``program``
    is the file that the user would run. ``files`` are those that a template brought. ``omitted`` is
    what the source does and the build file does not.
    """

    path: Path
    text: str
    source: str
    notes: tuple[str, ...] = ()
    guessed: dict[str, str] = {}
    program: str = ""
    files: tuple[str, ...] = ()
    omitted: tuple[str, ...] = ()


def init(
    directory: Path, *, source: Path | None = None, python: bool = False, force: bool = False
) -> InitReport:
    """Write ``build.envd`` (with ``python`` ``build.py``) for ``directory``.

    ``source`` is the file to convert: a requirements file, ``pyproject.toml``, a conda environment
    file, a ``Dockerfile``, a ``devcontainer.json`` or its directory, or a notebook; without it
    the source is detected. Raises :class:`UsageError` if there is a build file (unless ``force``),
    or if ``source`` is invalid.
    """
    path = directory / ("build.py" if python else "build.envd")
    _refuse_overwriting(directory, path, force=force)
    draft = BuildFileDraft()
    wanted = read_source(source, directory, draft) if source else detect_source(directory, draft)
    if draft.copies_after_running and not python:
        python, path = True, directory / "build.py"
        _refuse_overwriting(directory, path, force=force)
        draft.notes.append("build.py keeps the order of copies and commands; build.envd does not")
    if not draft.image:
        choose_base(draft, own=detect_release(), wanted=wanted)
        if _works_with_git(directory, draft):
            draft.system.append("git")
    text = render_draft(draft, python=python)
    _write_build_file(path, text)
    return InitReport(
        path,
        text,
        draft.source,
        tuple(draft.notes),
        dict(draft.guessed),
        find_program(directory, source),
        omitted=tuple(draft.untranslated) if draft.must_be_complete else (),
    )


def init_from_template(
    directory: Path, name: str, *, force: bool = False, cache: Path | None = None
) -> InitReport:
    """Write ``build.envd`` from the template ``name``, or all files of a team's template.

    A team's template is a directory or a git repository, which is fetched into ``cache``
    (:func:`~danlu.convert.team_template.parse_template_address`). Raises :class:`UsageError`
    for an unknown name, for a template that is not acceptable, and if there is a build file (unless
    ``force``) or another of the template's files.
    """
    address = parse_template_address(name)
    if address is None:
        path = directory / "build.envd"
        _refuse_overwriting(directory, path, force=force)
        text = render_template(name, detect_release())
        _write_build_file(path, text)
        program = find_program(directory, None)
        return InitReport(path, text, f"the template {name}", program=program)
    template = read_template(address, directory, cache=(cache or Paths.of().cache) / "git")
    path = directory / template.build_file.path
    _refuse_overwriting(directory, path, force=force)
    write_template(template, directory, overwrite=path.name if force else "")
    return InitReport(
        path,
        template.build_file.content.decode(),
        mask_credentials(template.source),
        program=find_program(directory, None),
        files=tuple(file.path for file in template.files),
    )


def _works_with_git(directory: Path, draft: BuildFileDraft) -> bool:
    """Return whether git is expected inside: in a repository, if no file lists all programs.

    A worktree's repository is elsewhere, where an environment does not see it.
    """
    return (
        (directory / ".git").is_dir() and not draft.must_be_complete and "git" not in draft.system
    )


def _write_build_file(path: Path, text: str) -> None:
    try:
        write_atomic(path, text.encode())
    except OSError as error:
        raise OutsideError(f"cannot write {path}: {error.strerror}") from error


def _refuse_overwriting(directory: Path, path: Path, *, force: bool) -> None:
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a directory")
    for existing in (path, *(directory / name for name in BUILD_FILES)):
        if existing.exists() and not (force and existing == path):
            hint = (
                "use --force to overwrite it"
                if existing == path
                else f"remove it first: `danlu build` would still use {existing.name}"
            )
            raise UsageError(f"{existing.name} already exists", hint=hint)
