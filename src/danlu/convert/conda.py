"""Read conda's ``environment.yml`` into a draft."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from posixpath import normpath

from danlu.convert.draft import BuildFileDraft, DraftCall
from danlu.convert.name_mappings import CONDA_CHANNELS, CONDA_SYSTEM, CONDA_TO_PYPI
from danlu.sources.conda.match_spec import split_spec, to_pep440
from danlu.sources.environment_file import CondaEnvironmentFile, parse_environment_file

#: A line of ``pip:`` that names another file.
_FILE_LINE = re.compile(r"(?:-r|--requirement)(?:[ =]\s*)?(\S+)")
#: Other lines that depend on a directory or a variable, or that a list of packages cannot have.
_SPECIAL_LINE = re.compile(
    r"(?!--extra-index-url[ =]|--index-url[ =]|-i )[-./~]|.*(\s--|file:|\$\{)|(?!\S*://)\S*/\S*$"
)


def read_environment(path: Path, draft: BuildFileDraft, name: str) -> str:
    """Add the packages and variables of ``path``; return its Python as a version specifier.

    If all packages are known to be projects of PyPI or system packages, they become these. If not,
    the file is installed with conda: ``name`` is its path in the project, empty if it is outside.
    """
    file = parse_environment_file(path.read_text(encoding="utf-8-sig"), path.name)
    draft.environment.update(file.variables)
    _mention_project(path, file, draft)
    translation = _Translation(PurePosixPath(name).parent)
    translation.add(file)
    unknown = translation.draft.untranslated
    if name and unknown:
        draft.notes.append(
            f"{unknown[0]} has no known equivalent outside conda, so all of {path.name} is"
            " installed with conda"
        )
        draft.calls.append(DraftCall("install.conda"))
        draft.calls.append(DraftCall("install.conda_packages", keywords=(("env_file", name),)))
        return ""
    draft.wants_python = True
    draft.python = translation.draft.python
    draft.packages += translation.draft.packages
    draft.system += translation.draft.system
    draft.requirements += translation.draft.requirements
    draft.untranslated += unknown
    return translation.wanted


def _mention_project(path: Path, file: CondaEnvironmentFile, draft: BuildFileDraft) -> None:
    if any(re.match(r"(-e|--editable)[ =]|\.", line) for _, line in file.pip):
        return
    for name in ("setup.py", "pyproject.toml"):
        if (path.parent / name).is_file():
            draft.notes.append(
                f"{name} is not installed, because {path.name} does not: add `-e .` to its pip list"
                " if the programs import it"
            )
            return


class _Translation:
    """Translates an environment file in ``directory``; ``wanted`` is the specifier of Python."""

    def __init__(self, directory: PurePosixPath) -> None:
        self.draft = BuildFileDraft()
        self.wanted = ""
        self._directory = directory

    def add(self, file: CondaEnvironmentFile) -> None:
        private = [channel for channel in file.channels if channel not in CONDA_CHANNELS]
        self.draft.untranslated += [f"channel {channel}" for channel in private[:1]]
        for _, spec in file.specs:
            channel, _ = split_spec(spec)
            name, versions = to_pep440(spec)
            is_public = not channel or channel in CONDA_CHANNELS
            if versions is None or not is_public or not self._add_package(name, versions):
                self.draft.untranslated.append(spec)
        for _, text in file.pip:
            line = re.sub(r"(^|\s)#.*", "", text).strip()
            if match := _FILE_LINE.fullmatch(line):
                self.draft.requirements.append(normpath(self._directory / match[1]))
            elif _SPECIAL_LINE.match(line) and not self._is_local_project(line):
                self.draft.untranslated.append(f"pip: {line}")
            elif line:
                self.draft.packages.append(line)

    def _is_local_project(self, line: str) -> bool:
        at_top = self._directory == PurePosixPath(".")
        return at_top and re.fullmatch(r"(-e |--editable[ =])?\.(\[[\w,-]+\])?", line) is not None

    def _add_package(self, name: str, versions: str) -> bool:
        """Add a package whose meaning is known; return whether it is."""
        if name == "python":
            return self._choose_python(versions)
        if name in CONDA_SYSTEM and not versions:
            self.draft.system.append(CONDA_SYSTEM[name])
        elif name == "pip" and not versions:
            pass  # every environment has it
        elif name in CONDA_TO_PYPI:
            self.draft.packages.append(f"{CONDA_TO_PYPI[name]}{versions}")
        else:
            return False
        return True

    def _choose_python(self, versions: str) -> bool:
        self.wanted = versions
        if match := re.fullmatch(r"==(\d+\.\d+)(\.\d+)?(\.\*)?", versions):
            # As in conda, ==3.10 is 3.10.0 and =3.10 any 3.10.
            self.draft.python = f"{match[1]}{match[2] or ('' if match[3] else '.0')}"
            self.wanted = f"=={match[1]}.*"
        return True
