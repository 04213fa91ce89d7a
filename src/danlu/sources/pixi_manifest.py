"""Read pixi's manifest, ``pixi.toml`` (https://pixi.sh/latest/reference/pixi_manifest/).

Of its environments, the default one is read: the features that ``[environments]`` gives it, and the
default feature. What a build installs differently is refused; tasks and activation are not read.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import PurePosixPath
from typing import Any

import msgspec

from danlu.errors import Span, UsageError
from danlu.sources.environment_file import CondaEnvironmentFile, parse_environment_file

_CONDA_TABLES = ("dependencies", "host-dependencies", "build-dependencies")
_REFUSED_TABLES = ("constraints", "dev")
_CONDA_SOURCES = ("git", "path", "url")
_CONDA_FIELDS = ("version", "build", "build-number", "channel", "subdir", "file-name", "md5")
_PYPI_FIELDS = (
    *("version", "extras", "env-markers", "git", "branch", "tag", "rev", "subdirectory"),
    *("url", "path", "editable"),
)
_INDEX_OPTIONS = ("index-url", "extra-index-urls", "find-links", "no-build", "no-binary")

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
_HEADER = re.compile(r"\s*\[+\s*([^\]]+?)\s*\]+")
_KEY = re.compile(r"\s*[\"']?([\w.-]+)[\"']?\s*=")

#: The targets of pixi that are Linux, and the machine that each is limited to.
_TARGETS = {"unix": "", "linux": "", "linux-64": "x86_64", "linux-aarch64": "aarch64"}

#: conda's virtual packages, by pixi's name of a system requirement.
_SYSTEM_REQUIREMENTS = {"cuda": "__cuda", "libc": "__glibc", "linux": "__linux"}

Table = Mapping[str, Any]


class PixiFeature(msgspec.Struct, frozen=True):
    """A table of dependencies; ``header`` is its name in the file, ``machine`` what it is for."""

    header: str
    values: Table
    machine: str = ""


def is_pixi_manifest(name: str) -> bool:
    """Return whether a file of this name is a manifest of pixi."""
    return PurePosixPath(name).name == "pixi.toml"


def parse_conda_file(text: str, name: str, *, subdir: str = "") -> CondaEnvironmentFile:
    """Parse a conda environment file, or the default environment of a manifest of pixi.

    ``subdir`` is conda's name of the platform; without it, conda packages of all of them are
    returned. Raises :class:`UsageError`, with the line, for what is invalid or not supported.
    """
    if not is_pixi_manifest(name):
        return parse_environment_file(text, name)
    try:
        return _ManifestReader(text, name, subdir).read(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{name} is not valid TOML: {error}") from error
    except (AttributeError, RecursionError, TypeError) as error:
        # A value of another type than pixi's schema has.
        raise UsageError(
            f"{name} is not a valid manifest of pixi: {error}", hint="check it with `pixi info`"
        ) from error


class _ManifestReader:
    """Collects the parts of one manifest; ``name`` is the file's in messages."""

    def __init__(self, text: str, name: str, subdir: str) -> None:
        self._name = name
        self._subdir = subdir
        self._lines = dict(_list_keys(text))
        self._channels: list[str] = []
        self._specs: list[tuple[int, str]] = []
        self._pip: list[tuple[int, str]] = []
        self._virtual_packages: dict[str, str] = {}

    def read(self, values: Table) -> CondaEnvironmentFile:
        header = "workspace" if "workspace" in values else "project"
        workspace = self._get_table(values, header, "")
        if not workspace:
            raise UsageError(
                f"{self._name} is not a manifest of pixi: it has no [workspace]",
                span=Span(self._name, 1),
                hint="`pixi init` writes one",
            )
        self._check_platform(workspace, header)
        for feature in self._list_features(values):
            self._read_feature(feature)
        self._add_channels(workspace, header)
        if not self._channels:
            raise self._make_error("channels is empty or missing", header, "channels")
        self._read_pypi_options(self._get_table(workspace, "pypi-options", header), header)
        return CondaEnvironmentFile(
            tuple(dict.fromkeys(self._channels)),
            tuple(dict.fromkeys(self._specs)),
            tuple(dict.fromkeys(self._pip)),
            self._virtual_packages,
        )

    def _check_platform(self, workspace: Table, header: str) -> None:
        platforms = workspace.get("platforms") or []
        listed = [item for item in platforms if isinstance(item, str)]
        if self._subdir and listed and self._subdir not in listed:
            raise self._make_error(
                f"the platforms do not include {self._subdir}",
                header,
                "platforms",
                hint=f'add "{self._subdir}" to platforms, or build with --platform',
            )

    def _list_features(self, values: Table) -> Iterator[PixiFeature]:
        """Yield the features of the default environment, with the targets that apply."""
        chosen = self._get_table(values, "environments", "").get("default", [])
        options = chosen if isinstance(chosen, dict) else {"features": chosen}
        features = self._get_table(values, "feature", "")
        for name in options.get("features") or ():
            if name == "default":
                continue
            if name not in features:
                raise self._make_error(f"feature {name!r} not found", "environments", "default")
            yield from self._list_targets(PixiFeature(f"feature.{name}", features[name]))
        if not options.get("no-default-feature"):
            yield from self._list_targets(PixiFeature("", values))

    def _list_targets(self, feature: PixiFeature) -> Iterator[PixiFeature]:
        yield feature
        targets = self._get_table(feature.values, "target", feature.header)
        for name, machine in _TARGETS.items():
            if machine and self._subdir and name != self._subdir:
                continue
            header = _join_header(feature.header, f"target.{name}")
            values = self._get_table(targets, name, header)
            if values:
                yield PixiFeature(header, values, machine)

    def _read_feature(self, feature: PixiFeature) -> None:
        for refused in _REFUSED_TABLES:
            if feature.values.get(refused):
                raise self._make_error(
                    f"[{_join_header(feature.header, refused)}] is not supported",
                    feature.header,
                    refused,
                )
        for table in _CONDA_TABLES:
            header = _join_header(feature.header, table)
            for name, value in self._get_table(feature.values, table, feature.header).items():
                spec = self._convert_conda(name, value, header)
                self._specs.append((self._find_line(header, name), spec))
        header = _join_header(feature.header, "pypi-dependencies")
        python = self._get_table(feature.values, "pypi-dependencies", feature.header)
        for name, value in python.items():
            line = self._convert_pypi(name, value, header, feature.machine)
            self._pip.append((self._find_line(header, name), line))
        if feature.header:
            self._add_channels(feature.values, feature.header)
        options = self._get_table(feature.values, "pypi-options", feature.header)
        self._read_pypi_options(options, feature.header)
        required = self._get_table(feature.values, "system-requirements", feature.header)
        for name, package in _SYSTEM_REQUIREMENTS.items():
            value = required.get(name)
            version = value.get("version", "") if isinstance(value, dict) else value
            if version:
                self._virtual_packages.setdefault(package, str(version))

    def _add_channels(self, values: Table, header: str) -> None:
        for item in values.get("channels") or ():
            channel = item.get("channel") if isinstance(item, dict) else item
            if not isinstance(channel, str) or not channel:
                raise self._make_error("channels must be a list of strings", header, "channels")
            self._channels.append(channel)

    def _convert_conda(self, name: str, value: Any, header: str) -> str:
        """Return a dependency as a match specification of conda."""
        self._check_name(name, header)
        fields = {"version": value} if isinstance(value, str) else value
        if not isinstance(fields, dict):
            raise self._make_error(f"{name} must be a version or a table", header, name)
        for source in _CONDA_SOURCES:
            if source in fields:
                raise self._make_error(
                    f"the conda package {name} comes from {source}, which is not supported",
                    header,
                    name,
                    hint="use a package of a channel, or a Python package in [pypi-dependencies]",
                )
        unknown = [field for field in fields if field not in (*_CONDA_FIELDS, "sha256")]
        if unknown:
            raise self._make_error(f"{name}: {unknown[0]} is not supported", header, name)
        channel = f"{fields['channel']}::" if "channel" in fields else ""
        if set(fields) <= {"version", "channel"}:
            return f"{channel}{name} {fields.get('version', '*')}".removesuffix(" *")
        conditions = (
            f"{field.replace('-', '_')}='{text}'"
            for field, text in sorted(fields.items())
            if field != "channel" and text != "*"
        )
        return f"{channel}{name}[{','.join(conditions)}]"

    def _convert_pypi(self, name: str, value: Any, header: str, machine: str) -> str:
        """Return a dependency as a line of a requirements file."""
        self._check_name(name, header)
        fields = {"version": value} if isinstance(value, str) else value
        if not isinstance(fields, dict):
            raise self._make_error(f"{name} must be a version or a table", header, name)
        unknown = [field for field in fields if field not in _PYPI_FIELDS]
        if unknown:
            raise self._make_error(
                f"{name}: {unknown[0]} is not supported",
                header,
                name,
                hint="use index-url in [pypi-options]" if unknown[0] == "index" else "",
            )
        extras = f"[{','.join(fields['extras'])}]" if fields.get("extras") else ""
        marks = [f"platform_machine == '{machine}'"] if machine else []
        marks += [fields["env-markers"]] if fields.get("env-markers") else []
        marker = f" ; {' and '.join(marks)}" if marks else ""
        if "path" in fields:
            path = (
                fields["path"] if fields["path"].startswith((".", "/")) else f"./{fields['path']}"
            )
            editable = "-e " if fields.get("editable") else ""
            return f"{editable}{path}{extras}{marker}"
        if "git" in fields:
            ref = next((fields[key] for key in ("rev", "tag", "branch") if key in fields), "")
            subdirectory = fields.get("subdirectory", "")
            url = fields["git"].removeprefix("git+") + (f"@{ref}" if ref else "")
            fragment = f"#subdirectory={subdirectory}" if subdirectory else ""
            return f"{name}{extras} @ git+{url}{fragment}{marker}"
        if "url" in fields:
            return f"{name}{extras} @ {fields['url']}{marker}"
        version = fields.get("version", "*").strip()
        if version == "*":
            return f"{name}{extras}{marker}"
        # pixi takes a bare version for that version, as conda does.
        exact = "==" if version[:1].isdigit() else ""
        return f"{name}{extras}{exact}{version}{marker}"

    def _read_pypi_options(self, options: Table, header: str) -> None:
        header = _join_header(header, "pypi-options")
        for key in options:
            if key not in _INDEX_OPTIONS and key != "index-strategy":
                raise self._make_error(f"[{header}] {key} is not supported", header, key)
        lines = [f"--index-url {options['index-url']}"] if options.get("index-url") else []
        lines += [f"--extra-index-url {url}" for url in options.get("extra-index-urls") or ()]
        for place in options.get("find-links") or ():
            lines.append(f"--find-links {place.get('url') or place.get('path')}")
        for key, option in (("no-build", "--only-binary"), ("no-binary", "--no-binary")):
            chosen = options.get(key)
            if chosen:
                names = ":all:" if chosen is True else ",".join(chosen)
                lines.append(f"{option} {names}")
        self._pip += [(self._find_line(header, ""), line) for line in lines]

    def _check_name(self, name: str, header: str) -> None:
        if not _NAME.fullmatch(name):
            raise self._make_error(f"invalid package name {json.dumps(name)}", header, name)

    def _get_table(self, values: Table, name: str, header: str) -> Table:
        table = values.get(name, {})
        if not isinstance(table, dict):
            raise self._make_error(f"{name} must be a table", header, name)
        return table

    def _find_line(self, header: str, key: str) -> int:
        """Return the line of a key, else of its table; 1 if neither is written by itself."""
        return self._lines.get((header, key)) or self._lines.get((header, ""), 1)

    def _make_error(self, problem: str, header: str, key: str, *, hint: str = "") -> UsageError:
        line = self._lines.get((_join_header(header, key), "")) or self._find_line(header, key)
        return UsageError(f"{self._name}: {problem}", span=Span(self._name, line), hint=hint)


def _join_header(header: str, name: str) -> str:
    return f"{header}.{name}" if header else name


def _list_keys(text: str) -> Iterator[tuple[tuple[str, str], int]]:
    """Yield (table, key) and its line number; the key is empty for the line of the table."""
    header = ""
    for number, line in enumerate(text.splitlines(), 1):
        if match := _HEADER.match(line):
            header = re.sub(r"[\"'\s]", "", match[1])
            yield (header, ""), number
        elif match := _KEY.match(line):
            yield (header, match[1]), number
