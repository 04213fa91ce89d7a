"""The file format of a bug report: a gzipped tar of small files, read as untrusted input.

::

    report.json     :class:`ReportHeader`
    project/        the build file, the lock, and the files that they name
    plan.json, doctor.json, versions.json, environment.json, config.toml
    logs/           logs of danlu, of jobs and of environments
"""

from __future__ import annotations

import gzip
import io
import re
import tarfile
import zlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

from danlu.errors import OutsideError, UsageError
from danlu.util.decoding import decode_json
from danlu.util.files import is_special_file, write_atomic
from danlu.util.sanitize import strip_control_sequences

MAX_FILE_BYTES = 4 << 20
"""Larger files are not part of a bundle."""

_MAX_TOTAL_BYTES = 64 << 20
_MAX_FILES = 2000
_MAX_NAME_LENGTH = 240
_PART = re.compile(r"[A-Za-z0-9_.+@=,()-]+")

HEADER_NAME = "report.json"
PROJECT_PREFIX = "project/"


class ReportHeader(msgspec.Struct, frozen=True):
    """What a bundle is about.

    ``file`` is the build file relative to the project, empty without one; ``target`` is its
    function, and ``platform`` the one that was planned. ``missing`` are files of the project that
    the bundle does not have, with the reason.
    """

    created: str
    danlu: str
    file: str = ""
    target: str = ""
    platform: str = ""
    missing: tuple[str, ...] = ()
    version: int = 1


def write_bundle(path: Path, files: Mapping[str, bytes]) -> None:
    """Write the files, readable by the user only; raises :class:`OutsideError` if it fails."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size, member.mode = len(content), 0o600
            archive.addfile(member, io.BytesIO(content))
    if is_special_file(path):
        raise OutsideError(f"cannot write {path}: it is not a regular file", hint="write to a file")
    try:
        write_atomic(path, buffer.getvalue(), mode=0o600)
    except OSError as error:
        raise OutsideError(f"cannot write {path}: {error.strerror}") from error


def read_bundle(path: Path) -> tuple[ReportHeader, dict[str, bytes]]:
    """Return the header and the files of a bundle.

    Raises :class:`UsageError` for anything that :func:`write_bundle` would not write: links,
    devices, paths that lead elsewhere, duplicates, too many or too large files.
    """
    data = _decompress_file(path)
    files: dict[str, bytes] = {}
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as archive:
            for member in archive:
                name = _check_member(member, files)
                content = archive.extractfile(member)
                assert content is not None
                files[name] = content.read()
    except (tarfile.TarError, EOFError, ValueError, OverflowError) as error:
        raise UsageError(f"{path} is not a bundle of `danlu report`: {error}") from error
    try:
        header = decode_json(files.get(HEADER_NAME, b""), ReportHeader)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{path} is not a bundle of `danlu report`: {error}") from error
    if header.version != 1:
        raise UsageError(f"{path} was written by a newer danlu", hint="update danlu")
    return header, files


def _decompress_file(path: Path) -> bytes:
    """Return the tar; reads no more than a bundle may have, whatever the file expands to."""
    try:
        with gzip.open(path) as file:
            data = file.read(_MAX_TOTAL_BYTES + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        raise UsageError(f"{path} is not a bundle of `danlu report`: {error}") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > _MAX_TOTAL_BYTES:
        raise UsageError(f"{path} expands to more than {_MAX_TOTAL_BYTES >> 20} MiB")
    return data


def _check_member(member: tarfile.TarInfo, files: Mapping[str, bytes]) -> str:
    name = member.name
    shown = strip_control_sequences(name[:100])
    if member.type not in (tarfile.REGTYPE, tarfile.AREGTYPE):
        raise UsageError(f"the bundle contains {shown}, which is not a file")
    parts = name.split("/")
    if len(name) > _MAX_NAME_LENGTH or any(
        part in (".", "..") or not _PART.fullmatch(part) for part in parts
    ):
        raise UsageError(f"the bundle contains an invalid path: {shown}")
    if name in files or any(
        other.startswith(f"{name}/") or name.startswith(f"{other}/") for other in files
    ):
        raise UsageError(f"the bundle contains {shown} twice")
    if member.size > MAX_FILE_BYTES or len(files) >= _MAX_FILES:
        raise UsageError(f"the bundle is too large at {shown}")
    return name
