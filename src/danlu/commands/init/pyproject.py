"""``pyproject.toml`` (PEP 621, and Poetry's tables) as a draft."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from danlu.commands.init.draft import Draft
from danlu.errors import UsageError

__all__ = ["read_pyproject"]


def read_pyproject(path: Path, draft: Draft) -> str:
    """Add the dependencies of ``path``; gives the Python it asks for (``>=3.10``)."""
    import tomllib

    try:
        with path.open("rb") as file:
            value = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path.name} is not valid TOML: {error}") from error
    project = _table(value, "project")
    poetry = _table(_table(value, "tool"), "poetry")
    if _table(poetry, "dependencies") and not project.get("dependencies"):
        wanted = _poetry(poetry, draft)
    else:
        draft.packages += [str(one) for one in project.get("dependencies", [])]
        wanted = str(project.get("requires-python", ""))
        if "dependencies" in project.get("dynamic", []):
            draft.notes.append(f"{path.name} computes its dependencies; they are not in the file")
    draft.wants_python = bool(project or poetry)
    _source_layout(path.parent, project or poetry, draft)
    return wanted


def _table(value: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    found = value.get(name, {})
    return found if isinstance(found, Mapping) else {}


def _source_layout(directory: Path, project: Mapping[str, Any], draft: Draft) -> None:
    """A package below ``src`` is not found by a program that starts in the project's directory."""
    if project.get("name") and (directory / "src").is_dir():
        draft.environment["PYTHONPATH"] = "/workspace/src"


def _poetry(poetry: Mapping[str, Any], draft: Draft) -> str:
    wanted = ""
    for name, value in _table(poetry, "dependencies").items():
        if name == "python":
            wanted = _specifier(str(value))
        elif isinstance(value, str):
            draft.packages.append(f"{name}{_specifier(value)}")
        elif isinstance(value, Mapping) and value.get("optional"):
            draft.left.append(f"{name} (optional)")
        else:
            draft.packages.append(_poetry_table(name, value, draft))
    draft.packages[:] = [one for one in draft.packages if one]
    return wanted


def _poetry_table(name: str, value: Any, draft: Draft) -> str:
    if not isinstance(value, Mapping):
        draft.left.append(f"{name}: {value}")
        return ""
    extras = f"[{','.join(value['extras'])}]" if value.get("extras") else ""
    if "git" in value:
        ref = value.get("tag") or value.get("rev") or value.get("branch") or ""
        return f"{name}{extras} @ git+{value['git']}" + (f"@{ref}" if ref else "")
    if "url" in value:
        return f"{name}{extras} @ {value['url']}"
    if "path" in value:
        draft.left.append(f"{name} at {value['path']}")
        return ""
    return f"{name}{extras}{_specifier(str(value.get('version', '*')))}"


def _specifier(text: str) -> str:
    """Poetry's ``^1.2``, ``~1.2``, ``1.2`` and ``*`` in PEP 440's words."""
    return ",".join(filter(None, (_one(part.strip()) for part in text.split(","))))


def _one(text: str) -> str:
    if text in ("*", ""):
        return ""
    if text[0] == "^":
        return f">={text[1:]},<{_after_caret(text[1:])}"
    if text[0] == "~" and not text.startswith("~="):
        parts = text[1:].split(".")
        top = [parts[0], str(int(parts[1]) + 1)] if len(parts) > 1 else [str(int(parts[0]) + 1)]
        return f">={text[1:]},<{'.'.join(top)}"
    return f"=={text}" if text[0].isdigit() else text


def _after_caret(version: str) -> str:
    """The first version that ``^version`` excludes: the leftmost number but zeros is raised."""
    parts = [int(part) if part.isdigit() else 0 for part in version.split(".")]
    place = next((index for index, part in enumerate(parts) if part), len(parts) - 1)
    return ".".join(str(part) for part in [*parts[:place], parts[place] + 1])
