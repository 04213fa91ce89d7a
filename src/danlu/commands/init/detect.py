"""What to make a build file from: the file the user names, or what the directory holds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from danlu.commands.init.draft import Call, Draft
from danlu.environment.names import name_of
from danlu.errors import UsageError

__all__ = ["detect", "program_of", "read_source"]

_KINDS = "requirements.txt, pyproject.toml, environment.yml, Dockerfile or NOTEBOOK.ipynb"

#: Files that one would run, the likeliest first.
_PROGRAMS = ("train.py", "main.py", "app.py", "run.py")

#: Words of pip that mean another file or the project itself, in a requirements file.
_PROJECT_LINES = re.compile(r"^\s*(-e|--editable)[ =]|^\s*\.(\[|/|\s*$)")


def read_source(source: Path, directory: Path, draft: Draft) -> str:
    """Fill ``draft`` from ``source``; gives the Python that it asks for as a specifier.

    Raises :class:`UsageError` where it is absent, unreadable or of no known kind.
    """
    if not source.is_file():
        raise UsageError(f"there is no file {source}", hint=f"--from takes {_KINDS}")
    reader = _reader(source)
    if reader is None:
        raise UsageError(
            f"{source.name} is of no kind that is known", hint=f"--from takes {_KINDS}"
        )
    draft.source = source.name
    try:
        return reader(source, directory, draft)
    except UnicodeDecodeError as error:
        raise UsageError(f"{source.name} is not UTF-8 text: {error.reason}") from error


def detect(directory: Path, draft: Draft) -> str:
    """Fill ``draft`` from what ``directory`` holds, declared packages before guessed ones."""
    wanted = ""
    for name in _declared(directory):
        wanted = read_source(directory / name, directory, draft) or wanted
        if draft.packages or draft.requirements or draft.system:
            return wanted
    return _from_imports(directory, draft) or wanted


def program_of(directory: Path, source: Path | None = None) -> str:
    """The file one would run: ``train.py`` and its like, else the only program there is."""
    if source is not None and source.suffix == ".ipynb":
        return source.name
    for name in _PROGRAMS:
        if (directory / name).is_file():
            return name
    found = sorted(
        one.name for one in directory.glob("*.py") if one.name not in ("build.py", "setup.py")
    )
    return found[0] if len(found) == 1 else ""


def _reader(source: Path) -> Callable[[Path, Path, Draft], str] | None:
    name = source.name.lower()
    if name == "pyproject.toml":
        return _from_pyproject
    if name.endswith((".yml", ".yaml")):
        return _from_conda
    if name.endswith(".ipynb"):
        return _from_notebook
    if "dockerfile" in name or name == "containerfile":
        return _from_dockerfile
    return _from_requirements if name.endswith((".txt", ".in")) else None


def _declared(directory: Path) -> list[str]:
    """Files that declare packages, the most direct first."""
    names = ["requirements.txt", "pyproject.toml", "environment.yml", "environment.yaml"]
    found = [name for name in names if (directory / name).is_file()]
    if not found:
        other = sorted(one.name for one in directory.glob("requirements*.txt") if one.is_file())
        found = other if len(other) == 1 else []
    return found


def _from_requirements(source: Path, directory: Path, draft: Draft) -> str:
    draft.requirements.append(_relative(source, directory))
    draft.wants_python = True
    for line in source.read_text(encoding="utf-8-sig").splitlines():
        if _PROJECT_LINES.match(line):
            draft.notes.append(f"{source.name} installs the project itself: {line.strip()}")
    return _python_version_file(directory)


def _from_pyproject(source: Path, directory: Path, draft: Draft) -> str:
    from danlu.commands.init.pyproject import read_pyproject

    return read_pyproject(source, draft) or _python_version_file(directory)


def _from_conda(source: Path, directory: Path, draft: Draft) -> str:
    from danlu.commands.init.conda import read_environment

    return read_environment(source, draft)


def _from_dockerfile(source: Path, directory: Path, draft: Draft) -> str:
    from danlu.commands.init.dockerfile import read_dockerfile
    from danlu.commands.init.machine import PYTHONS, release_of_image

    read_dockerfile(source, draft)
    release = release_of_image(draft.image)
    if draft.needs_python and release in PYTHONS:
        draft.python = PYTHONS[release]
    return ""


def _from_notebook(source: Path, directory: Path, draft: Draft) -> str:
    from danlu.commands.init.imports import scan

    _add_found(scan([source], directory), directory, draft)
    draft.wants_python = True
    draft.calls.append(Call("config.jupyter"))
    return _python_version_file(directory)


def _from_imports(directory: Path, draft: Draft) -> str:
    from danlu.commands.init.imports import python_files, scan

    paths = list(python_files(directory))
    _add_found(scan(paths, directory), directory, draft)
    draft.wants_python = True
    count = f"{len(paths)} files" if len(paths) != 1 else paths[0].name
    draft.source = f"the imports of {count}" if paths else "nothing: there is no Python file yet"
    if any(path.suffix == ".ipynb" for path in paths):
        draft.calls.append(Call("config.jupyter"))
    return _python_version_file(directory)


def _add_found(found: object, directory: Path, draft: Draft) -> None:
    from danlu.commands.init.imports import Found, distribution_of, installed_names, system_of

    assert isinstance(found, Found)
    installed = installed_names(directory)
    named = {name_of(one) for one in found.packages}
    draft.packages += found.packages
    draft.system += found.system
    needed = {distribution_of(name, installed): file for name, file in found.imports.items()}
    for package, file in sorted(needed.items(), key=lambda one: one[0].lower()):
        if name_of(package) not in named:
            named.add(name_of(package))
            draft.packages.append(package)
            draft.guessed[package] = file
    draft.system += [system_of(name) for name in sorted(found.imports) if system_of(name)]
    optional = sorted({distribution_of(name, installed) for name in found.optional})
    draft.left += [
        f"{one} (imported where it is there)" for one in optional if name_of(one) not in named
    ]
    for name in found.unreadable:
        draft.notes.append(f"{name} could not be read as Python 3; its imports are not counted")


def _relative(path: Path, directory: Path) -> str:
    """``path`` as the build file names it; files outside of the project cannot be used."""
    resolved, root = path.resolve(), directory.resolve()
    if not resolved.is_relative_to(root):
        raise UsageError(
            f"{path} lies outside of the project {directory}",
            hint="a build file uses files of its own directory; copy it there",
        )
    return resolved.relative_to(root).as_posix()


def _python_version_file(directory: Path) -> str:
    """What ``.python-version`` (pyenv, uv) asks for: ``==3.11.*``."""
    try:
        text = (directory / ".python-version").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    match = re.match(r"^(3\.\d+)", text)
    return f"=={match[1]}.*" if match else ""
