"""Read ``pyproject.toml`` (PEP 621 and Poetry) into a draft."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from danlu.convert.draft import BuildFileDraft, DraftCall
from danlu.errors import UsageError


def read_pyproject(path: Path, directory: Path, draft: BuildFileDraft) -> str:
    """Add the dependencies of ``path``; return its Python as a version specifier.

    Extras, dependency groups, and what uv knows of a project cannot be listed by name: with them,
    the build file refers to ``path``, which must be in ``directory``.
    """
    try:
        with path.open("rb") as file:
            value = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is not valid TOML: {error}") from error
    project = _get_table(value, "project")
    poetry = _get_table(_get_table(value, "tool"), "poetry")
    if _get_table(poetry, "dependencies") and not project.get("dependencies"):
        wanted = _read_poetry(poetry, draft)
    else:
        groups, extras = _choose_additional(value, draft)
        is_dynamic = "dependencies" in _get_list(project, "dynamic", path)
        if (
            (groups or extras or _uses_uv(value, path.parent))
            and not is_dynamic
            and path.resolve().is_relative_to(directory)
        ):
            place = path.resolve().relative_to(directory).as_posix()
            chosen = (("groups", groups), ("extras", extras))
            keywords = (("pyproject", place), *((name, names) for name, names in chosen if names))
            draft.calls.append(DraftCall("install.python_packages", keywords=keywords))
        else:
            draft.packages += _get_list(project, "dependencies", path)
        wanted = str(project.get("requires-python", ""))
        if is_dynamic:
            draft.notes.append(f"the dependencies of {path.name} are dynamic and were not read")
    draft.wants_python = bool(project or poetry or draft.calls)
    _add_source_layout(path.parent, project or poetry, draft)
    return wanted


def _uses_uv(value: Mapping[str, Any], directory: Path) -> bool:
    """Return whether sources, or a ``uv.lock``, say where the packages come from."""
    sources = _get_table(_get_table(_get_table(value, "tool"), "uv"), "sources")
    return bool(sources) or (directory / "uv.lock").is_file()


def _choose_additional(
    value: Mapping[str, Any], draft: BuildFileDraft
) -> tuple[list[str], list[str]]:
    """Return the dependency groups (PEP 735) and the extras to install.

    These are all of them, except for those that ``tool.uv.conflicts`` excludes.
    """
    groups = _get_table(value, "dependency-groups")
    extras = _get_table(_get_table(value, "project"), "optional-dependencies")
    conflicts = _get_table(_get_table(value, "tool"), "uv").get("conflicts", [])
    left_out = [
        name
        for items in (conflicts if isinstance(conflicts, list) else [])
        for item in items
        for name in (item.get("extra"), item.get("group"))
        if name in extras or name in groups
    ]
    if left_out:
        names = ", ".join(dict.fromkeys(left_out))
        draft.notes.append(f"left out, because they conflict with one another: {names}")
    return (
        [name for name in groups if name not in left_out],
        [name for name in extras if name not in left_out],
    )


def _get_table(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    table = value.get(name, {})
    return table if isinstance(table, Mapping) else {}


def _get_list(project: Mapping[str, Any], name: str, path: Path) -> list[str]:
    """Return a list of strings in ``[project]``; raise :class:`UsageError` for anything else."""
    value = project.get(name, [])
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise UsageError(f"{path.name}: project.{name} must be a list of strings")
    return value


def _add_source_layout(directory: Path, project: Mapping[str, Any], draft: BuildFileDraft) -> None:
    """Make a package below ``src`` importable for programs started in the project's directory."""
    if project.get("name") and (directory / "src").is_dir():
        draft.environment["PYTHONPATH"] = "/workspace/src"


def _read_poetry(poetry: Mapping[str, Any], draft: BuildFileDraft) -> str:
    wanted = ""
    for name, value in _get_table(poetry, "dependencies").items():
        if name == "python":
            wanted = _to_pep440(str(value))
        elif isinstance(value, str):
            draft.packages.append(f"{name}{_to_pep440(value)}")
        elif isinstance(value, Mapping) and value.get("optional"):
            draft.untranslated.append(f"{name} (optional)")
        else:
            draft.packages.append(_format_poetry_dependency(name, value, draft))
    draft.packages[:] = [package for package in draft.packages if package]
    return wanted


def _format_poetry_dependency(name: str, value: Any, draft: BuildFileDraft) -> str:
    if not isinstance(value, Mapping):
        draft.untranslated.append(f"{name}: {value}")
        return ""
    extras = f"[{','.join(value['extras'])}]" if value.get("extras") else ""
    if "git" in value:
        ref = value.get("tag") or value.get("rev") or value.get("branch") or ""
        return f"{name}{extras} @ git+{value['git']}" + (f"@{ref}" if ref else "")
    if "url" in value:
        return f"{name}{extras} @ {value['url']}"
    if "path" in value:
        draft.untranslated.append(f"{name} at {value['path']}")
        return ""
    return f"{name}{extras}{_to_pep440(str(value.get('version', '*')))}"


def _to_pep440(text: str) -> str:
    """Convert Poetry's ``^1.2``, ``~1.2``, ``1.2`` and ``*`` to PEP 440."""
    return ",".join(filter(None, (_convert_clause(part.strip()) for part in text.split(","))))


def _convert_clause(text: str) -> str:
    if text in ("*", ""):
        return ""
    if text[0] == "^":
        return f">={text[1:]},<{_caret_upper_bound(text[1:])}"
    if text[0] == "~" and not text.startswith("~="):
        parts = text[1:].split(".")
        top = [parts[0], str(int(parts[1]) + 1)] if len(parts) > 1 else [str(int(parts[0]) + 1)]
        return f">={text[1:]},<{'.'.join(top)}"
    return f"=={text}" if text[0].isdigit() else text


def _caret_upper_bound(version: str) -> str:
    """Return the upper bound of ``^version``: its leftmost non-zero number is incremented."""
    parts = [int(part) if part.isdigit() else 0 for part in version.split(".")]
    first = next((index for index, part in enumerate(parts) if part), len(parts) - 1)
    return ".".join(map(str, [*parts[:first], parts[first] + 1]))
