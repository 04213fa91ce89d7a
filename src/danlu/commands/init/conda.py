"""conda's ``environment.yml`` as a draft: the small part of YAML that such files are written in."""

from __future__ import annotations

import re
from pathlib import Path

from danlu.commands.init.draft import Draft
from danlu.commands.init.names import CONDA_ONLY, CONDA_SYSTEM, CONDA_TO_PYPI
from danlu.errors import Span, UsageError

__all__ = ["read_environment"]

_SPEC = re.compile(r"^(?:[\w./-]+::)?([A-Za-z0-9_.-]+)\s*(.*)$")


def read_environment(path: Path, draft: Draft) -> str:
    """Add what ``path`` lists; gives the Python it asks for as a specifier."""
    wanted = ""
    draft.wants_python = True
    for section, value in _entries(path):
        if section == "pip":
            _pip(value, draft)
        elif section == "variables":
            name, _, text = value.partition("=" if "=" in value else ":")
            draft.environment[name.strip()] = _unquoted(text)
        elif section == "dependencies":
            wanted = _conda(value, draft) or wanted
    return wanted


def _entries(path: Path) -> list[tuple[str, str]]:
    """Pairs of section and scalar, in the file's order; pip's own list is the section ``pip``."""
    found: list[tuple[str, str]] = []
    section, pip_depth = "", -1
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        text = re.sub(r"(^|\s)#.*$", "", line.expandtabs()).rstrip()
        if not text or text == "---":
            continue
        depth = len(text) - len(text.lstrip())
        bare = text.strip()
        if depth == 0 and not bare.startswith("-"):
            section, pip_depth = _section(bare, path, number, found), -1
        elif bare.startswith("-"):
            value = bare[1:].strip()
            inside = pip_depth >= 0 and depth > pip_depth
            pip_depth = pip_depth if inside else -1
            if value.rstrip(" :") == "pip" and value.endswith(":"):
                pip_depth = depth
            else:
                found.append(("pip" if inside else section, _unquoted(value)))
        elif section == "variables":
            found.append((section, bare))
        else:
            raise _unclear(path, number, line)
    return found


def _section(bare: str, path: Path, number: int, found: list[tuple[str, str]]) -> str:
    name, colon, rest = bare.partition(":")
    if not colon:
        raise _unclear(path, number, bare)
    rest = rest.strip()
    if rest.startswith("[") and rest.endswith("]"):
        items = [one for one in rest[1:-1].split(",") if one.strip()]
        found += [(name.strip(), _unquoted(one)) for one in items]
    return name.strip()


def _unclear(path: Path, number: int, line: str) -> UsageError:
    return UsageError(
        f"{path.name} is written in a way danlu does not read",
        span=Span(path.name, number),
        source_line=line,
        hint="danlu reads lists of plain names, as `conda env export` writes them",
    )


def _unquoted(text: str) -> str:
    text = text.strip()
    return text[1:-1] if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'" else text


def _pip(value: str, draft: Draft) -> None:
    match = re.match(r"^(?:-r|--requirement)[ =]*(\S+)$", value)
    if match:
        draft.requirements.append(match[1])
    elif value.startswith(("-e", "--editable", ".", "/")):
        draft.left.append(f"pip: {value}")
    else:
        draft.packages.append(value)


def _conda(value: str, draft: Draft) -> str:
    """Add one conda spec; gives a specifier where it is Python's own."""
    match = _SPEC.match(value)
    if match is None:
        draft.left.append(value)
        return ""
    name, rest = match[1].lower(), match[2].strip()
    if name == "python":
        return _specifier(rest)
    if name in CONDA_SYSTEM:
        draft.system.append(CONDA_SYSTEM[name])
    elif name in CONDA_ONLY:
        if name not in ("pip", "setuptools", "wheel"):
            draft.left.append(value)
    elif name.startswith(("_", "lib", "r-")) or "_linux-" in name:
        draft.left.append(value)
    else:
        draft.packages.append(f"{CONDA_TO_PYPI.get(name, match[1])}{_specifier(rest)}")
    return ""


def _specifier(rest: str) -> str:
    """``=1.2``, ``=1.2.3=py310_0``, ``>=1.2``, ``==1.2`` and `` 1.2.*`` in PEP 440's words."""
    rest = rest.replace(" ", "")
    if not rest or rest == "*":
        return ""
    if "|" in rest:
        return ""  # alternatives have no equivalent
    if rest[0] in "<>!~" or rest.startswith("=="):
        return rest.split("=py", 1)[0]
    version, _, build = rest.lstrip("=").partition("=")
    if version.endswith("*") or build or version.count(".") >= 2:
        return f"=={version}"
    return f"=={version}.*"
