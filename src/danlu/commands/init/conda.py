"""Read conda's ``environment.yml`` into a draft."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from danlu.commands.init.draft import BuildFileDraft, DraftCall
from danlu.commands.init.name_mappings import CONDA_ONLY, CONDA_SYSTEM, CONDA_TO_PYPI
from danlu.errors import UsageError
from danlu.sources.environment_file import parse_yaml

#: ``channel::name version``, as in conda's match specifications.
_SPEC_PATTERN = re.compile(r"^(?:[\w./-]+::)?([A-Za-z0-9_.-]+)\s*(.*)$")


def read_environment(path: Path, draft: BuildFileDraft, name: str) -> str:
    """Add the packages and variables of ``path``; return its Python as a version specifier.

    If all packages have an equivalent, they become wheels and system packages. If not, the file is
    installed with conda: ``name`` is its path in the project, empty if it is outside.
    """
    environment = _load_yaml(path)
    draft.environment.update(_read_variables(environment.get("variables")))
    translated = BuildFileDraft()
    wanted = _translate_packages(environment, translated)
    if name and translated.untranslated:
        draft.notes.append(
            f"{path.name} has packages that only conda has ({translated.untranslated[0]} …), so all"
            " of it is installed with conda"
        )
        draft.calls.append(DraftCall("install.conda"))
        draft.calls.append(DraftCall("install.conda_packages", keywords=(("env_file", name),)))
        return ""
    draft.wants_python = True
    draft.packages += translated.packages
    draft.system += translated.system
    draft.requirements += translated.requirements
    draft.untranslated += translated.untranslated
    return wanted


def _translate_packages(environment: dict[str, Any], draft: BuildFileDraft) -> str:
    wanted = ""
    for dependency in environment.get("dependencies") or ():
        if isinstance(dependency, dict):
            for line in dependency.get("pip") or ():
                _add_pip_line(str(line), draft)
        else:
            wanted = _add_conda_spec(str(dependency), draft) or wanted
    return wanted


def _load_yaml(path: Path) -> dict[str, Any]:
    environment = parse_yaml(path.read_text(encoding="utf-8"), path.name)
    if not isinstance(environment, dict) or not _is_list_or_empty(environment.get("dependencies")):
        raise UsageError(
            f"{path.name} is not a conda environment file",
            hint="`conda env export` writes one: a mapping with a list of `dependencies`",
        )
    return environment


def _is_list_or_empty(value: object) -> bool:
    return isinstance(value, list) or not value


def _read_variables(value: object) -> Iterator[tuple[str, str]]:
    """Yield variables of a mapping (``NAME: value``) or a list (``- NAME=value``)."""
    if isinstance(value, dict):
        yield from ((str(name), str(text)) for name, text in value.items())
    elif isinstance(value, list):
        for line in value:
            name, _, text = str(line).partition("=")
            yield name.strip(), text.strip()


def _add_pip_line(line: str, draft: BuildFileDraft) -> None:
    match = re.match(r"^(?:-r|--requirement)[ =]*(\S+)$", line)
    if match:
        draft.requirements.append(match[1])
    elif line.startswith(("-e", "--editable", ".", "/")):
        draft.untranslated.append(f"pip: {line}")
    else:
        draft.packages.append(line)


def _add_conda_spec(spec: str, draft: BuildFileDraft) -> str:
    """Add one conda spec; if it is Python's, return its version specifier instead."""
    match = _SPEC_PATTERN.match(spec)
    if match is None:
        draft.untranslated.append(spec)
        return ""
    name, version = match[1].lower(), match[2].strip()
    if name == "python":
        return _to_pep440(version)
    if name in CONDA_SYSTEM:
        draft.system.append(CONDA_SYSTEM[name])
    elif name in CONDA_ONLY:
        if name not in ("pip", "setuptools", "wheel"):
            draft.untranslated.append(spec)
    elif name.startswith(("_", "lib", "r-")) or "_linux-" in name:
        draft.untranslated.append(spec)
    else:
        draft.packages.append(f"{CONDA_TO_PYPI.get(name, match[1])}{_to_pep440(version)}")
    return ""


def _to_pep440(version: str) -> str:
    """Convert ``=1.2``, ``=1.2.3=py310_0``, ``>=1.2``, ``==1.2`` or `` 1.2.*`` to PEP 440."""
    version = version.replace(" ", "")
    if not version or version == "*":
        return ""
    if "|" in version:
        return ""  # PEP 440 has no alternatives
    if version[0] in "<>!~" or version.startswith("=="):
        return version.split("=py", 1)[0]
    number, _, build = version.lstrip("=").partition("=")
    if number.endswith("*") or build or number.count(".") >= 2:
        return f"=={number}"
    return f"=={number}.*"
