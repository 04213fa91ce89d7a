"""Unpack a conda package as the files of an environment's prefix.

Each file of the archive goes straight to its place, with its prefix replaced, if the package lists
it. Every path is checked, so that a package can neither write outside its tree nor bring a file of
this machine into a layer.
"""

from __future__ import annotations

import errno
import hashlib
import os
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from danlu.errors import ChecksumError, OutsideError, ResolveError
from danlu.graph.ops import WHEEL_TIME, CondaPackage
from danlu.oci.tar import LayerSummary, NormalizeOptions, write_layer
from danlu.oci.tar.read import TarEntry, TarReader, TypeFlag
from danlu.sources.conda.archive import (
    FILE_KINDS,
    CondaArchive,
    InvalidArchive,
    PathEntry,
    list_paths,
    normalize_path,
)
from danlu.util.decoding import decode_json
from danlu.util.safe_paths import MAX_DEPTH
from danlu.util.sanitize import escape_unprintable

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


def unpack_layer(
    archive: Path, op: CondaPackage, tree: Path, normalise: NormalizeOptions
) -> LayerSummary:
    """Unpack as :func:`unpack_package` does, and return the layer's digest and size.

    Raises :class:`ChecksumError` first if ``archive`` is not the locked file: it may have been
    damaged since it was downloaded.
    """
    with archive.open("rb") as file:
        received = hashlib.file_digest(file, "sha256").hexdigest()
    if received != op.sha256:
        raise ChecksumError(
            f"checksum mismatch for the download of {op.file}",
            details=(f"expected sha256:{op.sha256}", f"received sha256:{received}"),
        )
    unpack_package(archive, op, tree)
    return write_layer(tree, None, normalise=normalise)


def unpack_package(archive: Path, op: CondaPackage, tree: Path) -> None:
    """Unpack the verified ``archive`` into the empty directory ``tree``, the root of a layer.

    Raises :class:`ResolveError` if the package has a script to run, and :class:`OutsideError` if it
    is damaged.
    """
    try:
        opened = CondaArchive(archive, op.file)
        metadata = opened.read_metadata()
        linker = _PackageLinker(op, metadata, list_paths(metadata), tree)
        with opened.open_files() as reader:
            linker.place_files(reader)
    except InvalidArchive as error:
        raise OutsideError(
            f"{op.file} is not a conda package: {escape_unprintable(str(error))}"
        ) from error
    linker.write_entry_points()
    linker.write_record()


class _PackageLinker:
    """Writes the files of one package to where they belong.

    Paths are strings, and what was checked is remembered: packages have tens of thousands of files,
    and with :mod:`pathlib` placing them took longer than decompressing them.
    """

    def __init__(
        self,
        op: CondaPackage,
        metadata: Mapping[str, bytes],
        paths: Iterable[PathEntry],
        tree: Path,
    ) -> None:
        self._op = op
        self._metadata = metadata
        self._prefix = os.path.join(tree, op.prefix.lstrip("/"))
        #: Directories of the tree that are known to be no links: only this class creates any.
        self._directories = {os.fspath(tree)}
        self._listed: dict[str, PathEntry] = {}
        #: Where the files of the archive are, by the paths that the package lists.
        self._placed: dict[str, str] = {}
        #: What is in the prefix, relative to it.
        self._files: set[str] = set()
        for entry in paths:
            self._check_path(entry.path)
            if self._listed.setdefault(entry.path, entry) is not entry:
                raise self._damage_error(f"two files at {entry.path}")
        self._make_directory(self._prefix)

    def _check_path(self, path: str) -> None:
        script = _SCRIPT.fullmatch(path)
        if script:
            raise ResolveError(
                f"the conda package {self._op.name} {self._op.version} has a"
                f" {script['when']} script, which danlu does not run",
                hint="use another build or version of it, or install it in a run() step",
            )
        parts = path.split("/")
        if any(part in ("", ".", "..") for part in parts) or len(parts) > MAX_DEPTH:
            raise self._damage_error(f"the path {path}")

    def place_files(self, reader: TarReader) -> None:
        """Write the listed files of the archive; the package must have all that it lists."""
        for entry in reader:
            listed = self._listed.get(normalize_path(entry.name))
            if listed is None:
                continue
            try:
                self._place_entry(listed, entry, reader)
            except FileExistsError:
                raise self._damage_error(f"two files at {listed.path}") from None
            except OSError as error:
                if error.errno in (errno.ENAMETOOLONG, errno.EINVAL, errno.EILSEQ):
                    raise self._damage_error(f"the path {listed.path}") from error
                raise
        for path in self._listed:
            target = f"{self._prefix}/{self._map_path(path)}"
            if path not in self._placed and target not in self._directories:
                raise self._damage_error(f"no file at {path}")

    def _place_entry(self, listed: PathEntry, entry: TarEntry, reader: TarReader) -> None:
        path = listed.path
        relative = self._map_path(path)
        target = f"{self._prefix}/{relative}"
        if entry.kind == TypeFlag.DIRECTORY or entry.name.endswith(b"/"):
            self._make_directory(target)
            return
        self._make_directory(os.path.dirname(target))
        if path in self._placed:
            # As for tar, the later of two entries counts.
            os.unlink(target)
        if entry.kind in FILE_KINDS:
            self._write_entry(target, listed, entry, reader)
        elif entry.kind == TypeFlag.SYMLINK:
            if not entry.link:
                raise self._damage_error(f"{path} is a link without a target")
            os.symlink(entry.link, target)
        elif entry.kind == TypeFlag.HARD_LINK:
            self._make_hard_link(target, listed, entry)
        else:
            raise self._damage_error(f"{path} is a special file")
        self._placed[path] = target
        self._files.add(relative)

    def _write_entry(
        self, target: str, listed: PathEntry, entry: TarEntry, reader: TarReader
    ) -> None:
        content: Iterable[bytes] = reader.content()
        if listed.prefix_placeholder:
            content = [self._replace_prefix(b"".join(content), listed)]
        elif target.endswith(".pyc"):
            content = [_set_source_time(b"".join(content))]
        _write_new_file(target, content, 0o755 if entry.mode & 0o111 else 0o644)

    def _make_hard_link(self, target: str, listed: PathEntry, entry: TarEntry) -> None:
        source = self._placed.get(normalize_path(entry.link))
        if source is None:
            raise self._damage_error(f"{listed.path} linked to a file that it does not list")
        os.link(source, target, follow_symlinks=False)
        if listed.prefix_placeholder and not os.path.islink(target):
            content = self._replace_prefix(Path(target).read_bytes(), listed)
            Path(target).write_bytes(content)
            os.utime(target, (WHEEL_TIME, WHEEL_TIME))

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
            # Nothing that exists is entered: it may be a link of the package that leads elsewhere.
            os.mkdir(directory)
        except FileExistsError:
            name = os.path.basename(directory)
            raise self._damage_error(f"files below {name}, which is not a directory") from None
        os.chmod(directory, 0o755)
        self._directories.add(directory)

    def _replace_prefix(self, content: bytes, listed: PathEntry) -> bytes:
        old, new = (listed.prefix_placeholder or "").encode(), self._op.prefix.encode()
        if listed.file_mode != "binary":
            return content.replace(old, new)
        if len(new) > len(old):
            raise self._damage_error(f"a placeholder shorter than {self._op.prefix}")

        def pad(match: re.Match[bytes]) -> bytes:
            # Offsets in the file must stay: the string shrinks, and NUL bytes follow it.
            text: bytes = match[0]
            return text.replace(old, new).ljust(len(text), b"\0")

        return re.sub(re.escape(old) + rb"[^\0]*", pad, content)

    def write_entry_points(self) -> None:
        """Write the scripts that ``info/link.json`` lists for a pure Python package."""
        if not self._op.python:
            return
        if "link.json" not in self._metadata:
            return
        try:
            link = msgspec.json.decode(self._metadata["link.json"])
            listed = list(link["noarch"].get("entry_points") or ())
        except (msgspec.DecodeError, TypeError, KeyError, AttributeError) as error:
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
            index: dict[str, Any] = decode_json(self._metadata["index.json"], dict[str, Any])
        except (KeyError, msgspec.DecodeError) as error:
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
        target = f"{self._prefix}/{relative}"
        self._make_directory(os.path.dirname(target))
        try:
            _write_new_file(target, [data], mode)
        except FileExistsError:
            raise self._damage_error(f"two files at {relative}") from None

    def _damage_error(self, what: str) -> OutsideError:
        return OutsideError(
            f"the conda package {self._op.file} is damaged: it has {escape_unprintable(what)}",
            hint="report it to the maintainers of the channel; lock another version or build",
        )


def _write_new_file(target: str, content: Iterable[bytes], mode: int) -> None:
    """Write a file, with the time of a layer's files, that must not exist yet."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(target, flags, mode)
    try:
        for piece in content:
            # os.write may write less than requested.
            view = memoryview(piece)
            while view:
                view = view[os.write(descriptor, view) :]
        # Independent of the umask.
        os.fchmod(descriptor, mode)
        os.utime(descriptor, (WHEEL_TIME, WHEEL_TIME))
    finally:
        os.close(descriptor)


def _set_source_time(content: bytes) -> bytes:
    """Set the time that bytecode expects of its source to that of a layer's files (PEP 552)."""
    if len(content) < 16 or content[4:8] != b"\0\0\0\0":
        return content
    return content[:8] + WHEEL_TIME.to_bytes(4, "little") + content[12:]
