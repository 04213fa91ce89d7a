"""Choose and read the source of a build file: the given file, or what the directory contains."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from danlu.convert.devcontainer import find_devcontainer, read_devcontainer
from danlu.convert.dockerfile import read_dockerfile
from danlu.convert.draft import BuildFileDraft, DraftCall
from danlu.convert.host import PYTHONS, parse_image_release
from danlu.convert.imports import (
    ScanResult,
    guess_distribution,
    guess_system_package,
    list_python_files,
    map_installed_modules,
    scan_imports,
)
from danlu.convert.pyproject import read_pyproject
from danlu.environment.conda import PIXI_HINT
from danlu.environment.package_names import requirement_name
from danlu.errors import UsageError

_SOURCE_KINDS = (
    "requirements.txt, pyproject.toml, environment.yml, Dockerfile, .devcontainer or NOTEBOOK.ipynb"
)

#: Names of programs, the most likely first.
_PROGRAMS = ("train.py", "main.py", "app.py", "run.py")

#: Lines of a requirements file that install the project itself.
_PROJECT_LINES = re.compile(r"^\s*(-e|--editable)[ =]|^\s*\.(\[|/|\s*$)")


def read_source(source: Path, directory: Path, draft: BuildFileDraft) -> str:
    """Fill ``draft`` from ``source``; return its Python as a version specifier.

    Raises :class:`UsageError` if the file is missing, invalid or of an unknown kind.
    """
    if source.is_dir():
        found = find_devcontainer(source)
        if found is None:
            raise UsageError(f"{source} has no devcontainer.json", hint=f"use {_SOURCE_KINDS}")
        source = found
    if not source.is_file():
        raise UsageError(f"{source} not found", hint=f"use {_SOURCE_KINDS}")
    reader = _find_reader(source)
    if source.name == "pixi.toml":
        raise UsageError(f"cannot convert {source.name}", hint=PIXI_HINT)
    if reader is None:
        raise UsageError(
            f"cannot convert {source.name}: unknown kind of file", hint=f"use {_SOURCE_KINDS}"
        )
    draft.source = source.name
    try:
        return reader(source, directory, draft)
    except UnicodeDecodeError as error:
        raise UsageError(f"{source.name} is not UTF-8 text: {error.reason}") from error


def detect_source(directory: Path, draft: BuildFileDraft) -> str:
    """Fill ``draft`` from what the directory declares, or else from the imports of its programs."""
    wanted = ""
    for name in _list_declarations(directory):
        wanted = read_source(directory / name, directory, draft) or wanted
        if draft.image or draft.packages or draft.requirements or draft.system or draft.calls:
            return wanted
    return _read_imports(directory, draft) or wanted


def find_program(directory: Path, source: Path | None = None) -> str:
    """Return the program to run: ``train.py`` or the like, else the only one, else nothing."""
    if source is not None and source.suffix == ".ipynb":
        return source.name
    for name in _PROGRAMS:
        if (directory / name).is_file():
            return name
    found = sorted(
        path.name for path in directory.glob("*.py") if path.name not in ("build.py", "setup.py")
    )
    return found[0] if len(found) == 1 else ""


def _find_reader(source: Path) -> Callable[[Path, Path, BuildFileDraft], str] | None:
    name = source.name.lower()
    if name == "pyproject.toml":
        return _read_pyproject_file
    if name in ("devcontainer.json", ".devcontainer.json"):
        return read_devcontainer
    if name.endswith((".yml", ".yaml")):
        return _read_conda_file
    if name.endswith(".ipynb"):
        return _read_notebook_file
    if "dockerfile" in name or name == "containerfile":
        return _read_dockerfile_file
    return _read_requirements if name.endswith((".txt", ".in")) else None


def _list_declarations(directory: Path) -> list[str]:
    """Return the files that declare packages, in order of preference."""
    names = [
        *("requirements.txt", "pyproject.toml"),
        *("environment.yml", "environment.yaml", "Dockerfile", "Containerfile"),
    ]
    found = [name for name in names if (directory / name).is_file()]
    if not found and (directory / "pixi.toml").is_file():
        return ["pixi.toml"]
    if not found:
        other = sorted(path.name for path in directory.glob("requirements*.txt") if path.is_file())
        found = other if len(other) == 1 else []
    return found


def _read_requirements(source: Path, directory: Path, draft: BuildFileDraft) -> str:
    draft.requirements.append(_relative_path(source, directory))
    draft.wants_python = True
    for line in source.read_text(encoding="utf-8-sig").splitlines():
        if _PROJECT_LINES.match(line):
            draft.notes.append(f"{source.name} installs the project itself: {line.strip()}")
    return _read_python_version(directory)


def _read_pyproject_file(source: Path, directory: Path, draft: BuildFileDraft) -> str:
    if "[tool.pixi" in source.read_text(encoding="utf-8"):
        draft.notes.append(f"[tool.pixi] of {source.name} was not read: {PIXI_HINT}")
    return read_pyproject(source, directory.resolve(), draft) or _read_python_version(directory)


def _read_conda_file(source: Path, directory: Path, draft: BuildFileDraft) -> str:
    from danlu.convert.conda import read_environment  # loads rattler

    inside = source.resolve().is_relative_to(directory.resolve())
    return read_environment(source, draft, _relative_path(source, directory) if inside else "")


def _read_dockerfile_file(source: Path, directory: Path, draft: BuildFileDraft) -> str:
    read_dockerfile(source, directory, draft)
    release = parse_image_release(draft.insert_defaults(draft.image))
    if draft.needs_python and release in PYTHONS:
        draft.python = PYTHONS[release]
    return ""


def _read_notebook_file(source: Path, directory: Path, draft: BuildFileDraft) -> str:
    _add_scan_result(scan_imports([source], directory), directory, draft)
    draft.wants_python = True
    draft.calls.append(DraftCall("config.jupyter"))
    return _read_python_version(directory)


def _read_imports(directory: Path, draft: BuildFileDraft) -> str:
    paths = list(list_python_files(directory))
    _add_scan_result(scan_imports(paths, directory), directory, draft)
    draft.wants_python = True
    count = f"{len(paths)} files" if len(paths) != 1 else paths[0].name
    draft.source = f"the imports of {count}" if paths else "a template (no Python files found)"
    if any(path.suffix == ".ipynb" for path in paths):
        draft.calls.append(DraftCall("config.jupyter"))
    return _read_python_version(directory)


def _add_scan_result(result: ScanResult, directory: Path, draft: BuildFileDraft) -> None:
    installed = map_installed_modules(directory)
    named = {requirement_name(requirement) for requirement in result.packages}
    draft.packages += result.packages
    draft.system += result.system
    needed = {guess_distribution(name, installed): file for name, file in result.imports.items()}
    for package, file in sorted(needed.items(), key=lambda item: item[0].lower()):
        if requirement_name(package) not in named:
            named.add(requirement_name(package))
            draft.packages.append(package)
            draft.guessed[package] = file
    draft.system += [
        guess_system_package(name) for name in sorted(result.imports) if guess_system_package(name)
    ]
    draft.untranslated += result.untranslated
    optional = sorted({guess_distribution(name, installed) for name in result.optional})
    draft.untranslated += [
        f"{package} (optional import)"
        for package in optional
        if requirement_name(package) not in named
    ]
    for name in result.unreadable:
        draft.notes.append(f"{name} is not valid Python 3; its imports were not read")


def _relative_path(path: Path, directory: Path) -> str:
    """Return ``path`` relative to the project; raises :class:`UsageError` if it is outside."""
    resolved, root = path.resolve(), directory.resolve()
    if not resolved.is_relative_to(root):
        raise UsageError(
            f"{path} is outside the project {directory}",
            hint="copy it into the project: a build file cannot use files outside",
        )
    return resolved.relative_to(root).as_posix()


def _read_python_version(directory: Path) -> str:
    """Return the version in ``.python-version`` (pyenv, uv) as a specifier: ``==3.11.*``."""
    try:
        text = (directory / ".python-version").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    match = re.match(r"^(3\.\d+)", text)
    return f"=={match[1]}.*" if match else ""
