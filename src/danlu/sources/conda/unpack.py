"""Unpack a conda package as the files of an environment's prefix.

rattler unpacks the archive, but does not link it: it trusts the paths that a package lists, and
follows links in it. Here each path is checked, so that a package can neither write outside its
tree nor bring a file of this machine into a layer.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Any

import msgspec

# rattler is large: callers import this module only when they need it.
from rattler import PathsJson
from rattler.package_streaming import extract

from danlu.environment.conda import strip_channel
from danlu.errors import ChecksumError, OutsideError, ResolveError
from danlu.graph.ops import WHEEL_TIME, CondaPackage

_SCRIPT = re.compile(r"bin/\.(?P<name>.+)-(?P<when>pre-link|post-link)\.sh")
_ENTRY_POINT = re.compile(r"\s*([\w.-]+)\s*=\s*([\w.]+)\s*:\s*([\w.]+)\s*")

#: As conda and pip write it.
_ENTRY_POINT_SCRIPT = """\
#!{interpreter}
# -*- coding: utf-8 -*-
import re
import sys

from {module} import {name}

if __name__ == '__main__':
    sys.argv[0] = re.sub(r'(-script\\.pyw?|\\.exe)?$', '', sys.argv[0])
    sys.exit({function}())
"""


def unpack_package(archive: Path, op: CondaPackage, workspace: Path, tree: Path) -> None:
    """Unpack the verified ``archive`` into ``tree``, the root of a layer.

    ``workspace`` is an empty directory on the file system of ``tree``. Raises
    :class:`ResolveError` if the package has a script to run, and :class:`OutsideError` if it is
    damaged.
    """
    # rattler recognises the format by the file's name.
    named = workspace / op.file
    named.symlink_to(archive)
    source = workspace / "unpacked"
    try:
        extract(named, source)
        paths = PathsJson.from_package_directory_with_deprecated_fallback(source).paths
    except Exception as error:
        reason = strip_channel(str(error).splitlines()[0]) if str(error) else type(error).__name__
        raise OutsideError(f"{op.file} is not a conda package: {reason}") from error
    linker = _PackageLinker(op, source, tree)
    for entry in paths:
        placeholder = entry.prefix_placeholder
        linker.place_file(
            os.fspath(entry.relative_path),
            placeholder.placeholder if placeholder is not None else "",
            binary=placeholder is not None and placeholder.file_mode.binary,
        )
    linker.write_entry_points()
    linker.write_record()


class _PackageLinker:
    """Moves the files of one unpacked package to where they belong.

    Paths are strings, and what was checked is remembered: packages have tens of thousands of files,
    and with :mod:`pathlib` linking them took longer than decompressing them.
    """

    def __init__(self, op: CondaPackage, source: Path, tree: Path) -> None:
        self._op = op
        self._source = os.fspath(source)
        self._prefix = os.path.join(tree, op.prefix.lstrip("/"))
        #: Directories of the tree, and of the unpacked package, that are known to be no links.
        self._directories = {os.fspath(tree)}
        self._sources = {self._source}
        #: What is in the prefix, relative to it.
        self._files: set[str] = set()
        self._make_directory(self._prefix)

    def place_file(self, path: str, placeholder: str, *, binary: bool) -> None:
        """Move a file to its place, with its prefix replaced."""
        script = _SCRIPT.fullmatch(path)
        if script:
            raise ResolveError(
                f"the conda package {self._op.name} {self._op.version} has a"
                f" {script['when']} script, which danlu does not run",
                hint="use another build or version of it, or install it in a run() step",
            )
        source, status = self._check_source(path)
        relative = self._map_path(path)
        target = f"{self._prefix}/{relative}"
        if stat.S_ISDIR(status.st_mode):
            self._make_directory(target)
            return
        self._make_directory(os.path.dirname(target))
        if relative in self._files or target in self._directories:
            raise self._damage_error(f"two files at {path}")
        if stat.S_ISLNK(status.st_mode):
            os.symlink(os.readlink(source), target)
        elif stat.S_ISREG(status.st_mode):
            os.rename(source, target)
            if placeholder:
                self._replace_prefix(Path(target), placeholder, binary=binary)
            elif target.endswith(".pyc"):
                _set_source_time(Path(target))
            mode = 0o755 if status.st_mode & 0o111 else 0o644
            if stat.S_IMODE(status.st_mode) != mode:
                os.chmod(target, mode)
            os.utime(target, (WHEEL_TIME, WHEEL_TIME))
        else:
            raise self._damage_error(f"{path} is a special file")
        self._files.add(relative)

    def _check_source(self, path: str) -> tuple[str, os.stat_result]:
        """Return the unpacked file of a listed path, which must be inside without any link."""
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or "\0" in path:
            raise self._damage_error(f"the path {path}")
        source = f"{self._source}/{path}"
        try:
            self._check_directory(os.path.dirname(source))
            return source, os.lstat(source)
        except OSError:
            raise self._damage_error(f"no file at {path}") from None

    def _check_directory(self, directory: str) -> None:
        """Raise :class:`OSError` unless an unpacked directory, and all above it, are no links."""
        if directory in self._sources:
            return
        self._check_directory(os.path.dirname(directory))
        if not stat.S_ISDIR(os.lstat(directory).st_mode):
            raise NotADirectoryError
        self._sources.add(directory)

    def _map_path(self, path: str) -> str:
        """Return where a path goes; those of pure Python packages depend on the interpreter."""
        first, slash, rest = path.partition("/")
        if self._op.site_packages and first == "site-packages":
            return f"{self._op.site_packages}{slash}{rest}"
        if self._op.site_packages and first == "python-scripts":
            return f"bin{slash}{rest}"
        return path

    def _make_directory(self, directory: str) -> None:
        if directory in self._directories:
            return
        self._make_directory(os.path.dirname(directory))
        try:
            os.mkdir(directory)
        except FileExistsError:
            name = os.path.basename(directory)
            raise self._damage_error(f"files below {name}, which is not a directory") from None
        os.chmod(directory, 0o755)
        self._directories.add(directory)

    def _replace_prefix(self, file: Path, placeholder: str, *, binary: bool) -> None:
        old, new = placeholder.encode(), self._op.prefix.encode()
        content = file.read_bytes()
        if not binary:
            file.write_bytes(content.replace(old, new))
            return
        if len(new) > len(old):
            raise self._damage_error(f"a placeholder shorter than {self._op.prefix}")

        def pad(match: re.Match[bytes]) -> bytes:
            # Offsets in the file must stay: the string shrinks, and NUL bytes follow it.
            text: bytes = match[0]
            return text.replace(old, new).ljust(len(text), b"\0")

        file.write_bytes(re.sub(re.escape(old) + rb"[^\0]*", pad, content))

    def write_entry_points(self) -> None:
        """Write the scripts that ``info/link.json`` lists for a pure Python package."""
        if not self._op.python:
            return
        try:
            link = msgspec.json.decode(Path(self._source, "info/link.json").read_bytes())
            listed = list(link["noarch"].get("entry_points") or ())
        except FileNotFoundError:
            return
        except (OSError, msgspec.DecodeError, TypeError, KeyError, AttributeError) as error:
            raise self._damage_error("an invalid info/link.json") from error
        for text in listed:
            match = _ENTRY_POINT.fullmatch(str(text))
            if match is None:
                raise self._damage_error(f"the entry point {text}")
            script = _ENTRY_POINT_SCRIPT.format(
                interpreter=f"{self._op.prefix}/bin/python{self._op.python}",
                module=match[2],
                name=match[3].partition(".")[0],
                function=match[3],
            )
            self._write_file(f"bin/{match[1]}", script.encode(), 0o755)
            self._files.add(f"bin/{match[1]}")

    def write_record(self) -> None:
        """Write ``conda-meta/NAME.json``, which makes the package known to conda."""
        try:
            index: dict[str, Any] = msgspec.json.decode(
                Path(self._source, "info/index.json").read_bytes(), type=dict[str, Any]
            )
        except (OSError, msgspec.DecodeError, msgspec.ValidationError) as error:
            raise self._damage_error("an invalid info/index.json") from error
        op = self._op
        if (str(index.get("name")).lower(), index.get("build")) != (op.name, op.build):
            raise ChecksumError(
                f"{op.file} contains {index.get('name')} {index.get('version')}"
                f" {index.get('build')}, not {op.name} {op.version} {op.build}"
            )
        stem = op.file.removesuffix(".conda").removesuffix(".tar.bz2")
        record = {
            **index,
            "channel": op.channel,
            "files": sorted(self._files),
            "fn": op.file,
            "sha256": op.sha256,
            "subdir": op.subdir,
        }
        data = msgspec.json.encode(record, order="sorted") + b"\n"
        self._write_file(f"conda-meta/{stem}.json", data, 0o644)

    def _write_file(self, relative: str, data: bytes, mode: int) -> None:
        target = Path(self._prefix, relative)
        self._make_directory(os.fspath(target.parent))
        if os.path.lexists(target):
            raise self._damage_error(f"two files at {relative}")
        target.write_bytes(data)
        target.chmod(mode)
        os.utime(target, (WHEEL_TIME, WHEEL_TIME))

    def _damage_error(self, what: str) -> OutsideError:
        return OutsideError(
            f"the conda package {self._op.file} is damaged: it has {what}",
            hint="report it to the maintainers of the channel; lock another version or build",
        )


def _set_source_time(file: Path) -> None:
    """Set the time that byte code expects of its source to that of a layer's files (PEP 552)."""
    with file.open("r+b") as stream:
        header = stream.read(16)
        if len(header) == 16 and header[4:8] == b"\0\0\0\0":
            stream.seek(8)
            stream.write(WHEEL_TIME.to_bytes(4, "little"))
