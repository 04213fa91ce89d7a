"""What this machine's configuration of pip and uv restricts when a lock is made."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import msgspec
from packaging.requirements import InvalidRequirement, Requirement

from danlu.environment.package_names import normalize_name, requirement_name
from danlu.errors import ResolveError, Span, UsageError
from danlu.sandbox.machine_settings import Decision, MachineSetting, iter_settings
from danlu.sandbox.pip_uv_config import (
    TRUE_VALUES,
    iter_uv_tables,
    locate_pip_options,
    split_values,
)
from danlu.sources.pypi.requirements import (
    ANY_FORMAT,
    FormatControl,
    RequirementLine,
    check_constraint,
    read_lines,
)
from danlu.sources.pypi.uv import find_uv
from danlu.util.process_activity import run_program
from danlu.util.urls import mask_credentials

_PIP = "pip's configuration"
_UV = "uv's configuration"

#: What replaces the address in a requirement: a lock contains no addresses.
_A_URL = " @ a URL"


class Restriction(msgspec.Struct, frozen=True):
    """One thing that the configuration restricts.

    ``value`` is a requirement or the setting's value, ``package`` the normalised name of the only
    package that it is about. ``origin`` is a variable, or whose configuration it is; ``place`` is
    the configuration file, and ``line`` where a requirements file has the requirement.
    """

    decision: Decision
    setting: str
    value: str
    origin: str
    package: str = ""
    place: str = ""
    line: str = ""

    def __str__(self) -> str:
        line = f" ({self.line})" if self.line else ""
        place = f" {self.place}" if self.place else ""
        return f"{self.value}{line}, from `{self.setting}` in {self.origin}{place}"


class RestrictionFile(msgspec.Struct, frozen=True):
    """A requirements file that the configuration names, as a path or URL, for uv's ``option``.

    ``lines`` are its requirements with those of the files that it includes; none of a URL.
    """

    decision: Decision
    option: str
    place: str
    lines: tuple[str, ...] = ()


class ExtraBuildRequirement(
    msgspec.Struct, frozen=True, rename="kebab", forbid_unknown_fields=True
):
    """What uv's setting ``extra-build-dependencies`` adds to the build of a package.

    With ``match_runtime``, it has the version that is installed with the package.
    """

    requirement: str
    match_runtime: bool = False


class MachineRestrictions(msgspec.Struct, frozen=True):
    """All restrictions, with the files that contain some of them, and the formats of files.

    By normalised package name, ``extra_builds`` are the additional build requirements and
    ``hashes`` the sha256 hashes that constraints files allow.
    """

    entries: tuple[Restriction, ...] = ()
    files: tuple[RestrictionFile, ...] = ()
    formats: FormatControl = ANY_FORMAT
    extra_builds: Mapping[str, tuple[ExtraBuildRequirement, ...]] = {}
    hashes: Mapping[str, frozenset[str]] = {}

    def to_options(self, decision: Decision) -> list[str]:
        """Return uv's options for the files with this decision."""
        files = [file for file in self.files if file.decision == decision]
        return [word for file in files for word in (file.option, file.place)]

    def list_lines(self, decision: Decision) -> list[str]:
        """Return the requirements in uv's own files with this decision."""
        return [
            entry.value
            for entry in self.entries
            if entry.decision == decision
            and entry.setting != "extra-build-dependencies"
            and not entry.line
            and not entry.value.endswith(_A_URL)
        ]

    def allows_build(self, pins: Iterable[str]) -> bool:
        """Return whether the build requirements ``NAME==VERSION`` are within all limits."""
        limits = [*self.list_lines("building")]
        limits += [
            line for file in self.files if file.decision == "building" for line in file.lines
        ]
        versions = dict(pin.split("==") for pin in pins)
        for line in limits:
            with suppress(InvalidRequirement):
                limit = Requirement(line)
                version = versions.get(normalize_name(limit.name))
                if version and not limit.specifier.contains(version, prereleases=True):
                    return False
        return True

    def explain(self, error: ResolveError) -> None:
        """Add the restrictions that may be the reason to uv's error about a resolution."""
        text = " ".join(error.details).replace("`", " ")
        words = {normalize_name(re.split(r"[\[<>=!~;@,]", word)[0]) for word in text.split()}
        named = [entry for entry in self.entries if not entry.package or entry.package in words]
        if named and "cannot resolve Python packages" in error.message:
            error.details = (*error.details, *dict.fromkeys(map(str, named)))
            likely = [entry for entry in named if entry.package]
            if likely or not error.hint:
                error.hint = (
                    "this machine's configuration restricts the packages: change the requirement"
                    f" or the setting `{(*likely, *named)[0].setting}`"
                )


def read_restrictions(
    project: Path, environ: Mapping[str, str] | None = None
) -> MachineRestrictions:
    """Return what pip's and uv's configuration restricts; relative paths are in ``project``.

    Raises :class:`ResolveError` that names the setting for a file that cannot be read.
    """
    env = os.environ if environ is None else environ
    collector = _RestrictionCollector(project, env)
    for setting in iter_settings({"resolving", "building"}):
        collector.add_setting(setting)
    return MachineRestrictions(
        tuple(collector.entries),
        tuple(collector.files),
        collector.formats,
        collector.extra_builds,
        collector.hashes,
    )


def check_settings(project: Path, environ: Mapping[str, str] | None = None) -> None:
    """Let uv check its configuration files; raise :class:`UsageError` if it does not use one."""
    environ = os.environ if environ is None else environ
    if not any(table for _, table in iter_uv_tables(environ, project)):
        return
    command = [str(find_uv()), "pip", "compile", "--offline", "--show-settings", "-"]
    env = {**environ, "NO_COLOR": "1", "UV_NO_WRAP": "1"}
    done = run_program(command, input=b"", env=env, cwd=project)
    messages = done.stderr.decode(errors="replace")
    # Not for `required-version`: danlu comes with its uv.
    if re.search("[Ff]ailed to (parse|read|open)", messages):
        # Without the text of the file, which may contain passwords.
        lines = [line.strip() for line in messages.splitlines() if not re.search(r" \|( |$)", line)]
        text = re.sub("^(error|warning): |,? expected one of .*", "", " ".join(lines))
        raise UsageError(
            f"cannot use uv's configuration: {mask_credentials(text).strip()}",
            hint="correct the file: uv does not use it either",
        )


class _ConfiguredValue(msgspec.Struct, frozen=True):
    """The value of a setting: text of pip or a variable, or a value in uv's files."""

    value: Any
    origin: str
    name: str
    place: str = ""

    def __str__(self) -> str:
        return f"`{self.name}` in {self.origin}" + (f" {self.place}" if self.place else "")


class _RestrictionCollector:
    def __init__(self, project: Path, environ: Mapping[str, str]) -> None:
        self._project = project
        self._environ = environ
        self._pip = locate_pip_options(environ)
        self._uv: dict[str, list[_ConfiguredValue]] = {}
        self.entries: list[Restriction] = []
        self.files: list[RestrictionFile] = []
        self.formats = ANY_FORMAT
        self.hashes: dict[str, frozenset[str]] = {}
        self.extra_builds: dict[str, tuple[ExtraBuildRequirement, ...]] = {}
        tables = list(iter_uv_tables(environ, project))
        for path, table in (*tables, *((path, table.get("pip")) for path, table in tables)):
            for name, value in table.items() if isinstance(table, dict) else ():
                found = self._uv.setdefault(name, [])
                if not isinstance(value, list):
                    found.clear()
                found.append(_ConfiguredValue(value, _UV, name, str(path)))

    def add_setting(self, setting: MachineSetting) -> None:
        for configured in self._find_values(setting):
            if setting.files:
                for place in split_values(str(configured.value)):
                    self._add_file(setting, place, configured)
            elif setting.formats:
                self._add_formats(setting, configured)
            elif configured.name == "extra-build-dependencies":
                self._add_extra_builds(setting, configured)
            else:
                self._add_values(setting, configured, configured.value)

    def _find_values(self, setting: MachineSetting) -> list[_ConfiguredValue]:
        """Return the values of a setting: variables win over uv's files, these over pip's."""
        for variable in setting.variables:
            if text := self._environ.get(variable):
                return [_ConfiguredValue(text, variable, (*setting.uv, setting.name)[0])]
        found = [value for name in setting.uv for value in self._uv.get(name, ())]
        for name in () if found else setting.pip:
            text, place = self._pip.get(name, ("", ""))
            is_variable = os.sep not in place
            if text and (name != "pre" or text.lower() in TRUE_VALUES):
                origin = place if is_variable else _PIP
                found.append(_ConfiguredValue(text, origin, name, "" if is_variable else place))
        return [value for value in found if value.value not in (False, [], {}, "")]

    def _add_values(
        self, setting: MachineSetting, configured: _ConfiguredValue, value: Any, *, line: str = ""
    ) -> None:
        """Add what a value, or the requirement at ``line`` of a file, restricts."""
        if isinstance(value, list):
            for item in value:
                self._add_values(setting, configured, item)
        elif isinstance(value, dict) and "name" in value:
            version = f" {value['version']}" if "version" in value else ""
            name = str(value["name"])
            self._add_entry(setting, configured, f"{name}{version}", package=normalize_name(name))
        elif isinstance(value, dict):
            for name, inner in value.items():
                package = normalize_name(str(name))
                self._add_entry(setting, configured, f"{name}={inner}", package=package)
        elif setting.files or configured.name.endswith("-dependencies"):
            text, package = _format_requirement(str(value))
            # A package that is left out is in no lock.
            package = "" if "exclude" in setting.name else package
            self._add_entry(setting, configured, text, package=package, line=line)
        else:
            text = str(value).lower() if isinstance(value, bool) else str(value)
            self._add_entry(setting, configured, text)

    def _add_extra_builds(self, setting: MachineSetting, configured: _ConfiguredValue) -> None:
        try:
            tables = msgspec.convert(configured.value, dict[str, list[str | ExtraBuildRequirement]])
        except msgspec.ValidationError as error:
            raise ResolveError(f"{configured.place}: extra-build-dependencies: {error}") from error
        for name, listed in tables.items():
            found = [
                ExtraBuildRequirement(item) if isinstance(item, str) else item for item in listed
            ]
            self.extra_builds[normalize_name(name)] = tuple(found)
            for item in found:
                text, package = _format_requirement(item.requirement)
                self._add_entry(setting, configured, f"{name}: {text}", package=package)

    def _add_entry(
        self,
        setting: MachineSetting,
        configured: _ConfiguredValue,
        value: str,
        *,
        package: str = "",
        line: str = "",
    ) -> None:
        entry = Restriction(
            setting.decision,
            configured.name,
            value,
            configured.origin,
            package,
            configured.place,
            line,
        )
        if entry not in self.entries:
            self.entries.append(entry)

    def _add_file(self, setting: MachineSetting, place: str, configured: _ConfiguredValue) -> None:
        if "://" in place and not place.startswith("file://"):
            self._add_entry(setting, configured, "a file on a server")
            self.files.append(RestrictionFile(setting.decision, setting.files, place))
            return
        local = unquote(urlsplit(place).path) if place.startswith("file:") else place
        path = self._project / os.path.expanduser(local)
        lines = []
        for entry in self._read_file(path, configured):
            if setting.files == "--constraints":
                check_constraint(entry, Span(str(entry.file), entry.line))
            if not entry.option:
                lines.append(entry.value)
                self._add_hashes(entry)
                line = f"{entry.file}, line {entry.line}"
                self._add_values(setting, configured, entry.value, line=line)
        self.files.append(
            RestrictionFile(setting.decision, setting.files, os.path.normpath(path), tuple(lines))
        )

    def _read_file(self, path: Path, configured: _ConfiguredValue) -> Iterator[RequirementLine]:
        """Yield the lines of a file and of those that it includes."""
        try:
            yield from read_lines(path, self._project, self._environ, Path.read_bytes)
        except ResolveError as error:
            error.hint = (
                error.hint or f"{configured} names it: correct the setting, or create the file"
            )
            raise

    def _add_hashes(self, entry: RequirementLine) -> None:
        digests = {text.removeprefix("sha256:").lower() for text in entry.hashes}
        if digests:
            name = requirement_name(entry.value)
            self.hashes[name] = self.hashes.get(name, frozenset(digests)) & digests

    def _add_formats(self, setting: MachineSetting, configured: _ConfiguredValue) -> None:
        value = configured.value
        names = [":all:"] if value is True else value
        names = split_values(names.replace(",", " ")) if isinstance(names, str) else names
        for name in names if isinstance(names, list | tuple) else ():
            try:
                self.formats = self.formats.with_option(setting.formats, str(name))
            except ValueError as error:
                raise ResolveError(
                    f"invalid package name {str(name)!r}", hint=f"correct {configured}"
                ) from error
            if name != ":none:":
                package = "" if name == ":all:" else normalize_name(str(name))
                self._add_entry(setting, configured, str(name), package=package)


def _format_requirement(text: str) -> tuple[str, str]:
    """Return a requirement without its address, and its name; other texts as they are."""
    try:
        requirement = Requirement(text)
    except InvalidRequirement:
        return ("a local file" if os.sep in text else text), ""
    name = normalize_name(requirement.name)
    return (f"{requirement.name}{_A_URL}" if requirement.url else text), name


def select_restrictions(
    restrictions: Iterable[Restriction], packages: Iterable[str], build_packages: Iterable[str]
) -> Iterator[Restriction]:
    """Yield the restrictions that concern packages of a lock, by their normalised names."""
    names, build_names = frozenset(packages), frozenset(build_packages)
    for restriction in restrictions:
        concerned = build_names if restriction.decision == "building" else names | build_names
        if concerned and (not restriction.package or restriction.package in concerned):
            yield restriction
