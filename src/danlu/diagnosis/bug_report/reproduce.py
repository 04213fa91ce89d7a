"""Unpack a bug report of someone else, and show how this machine differs from theirs.

Nothing of a bundle is executed on the host: the language of ``build.envd`` has no access to it,
and steps run in the sandbox. A ``build.py`` is a program, which only the user can allow.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from danlu.diagnosis.bug_report.bundle import PROJECT_PREFIX, ReportHeader, read_bundle
from danlu.diagnosis.bug_report.collect import describe_machine
from danlu.errors import OutsideError, UsageError

#: How long a value of the other machine may be; it is untrusted.
_MAX_VALUE_LENGTH = 100


class MachineDifference(msgspec.Struct, frozen=True):
    """A version that differs: in the report and here, empty if it is missing."""

    name: str
    reported: str
    here: str


class UnpackedReport(msgspec.Struct, frozen=True):
    """A bundle on disk: the directory of the project, and how this machine differs."""

    header: ReportHeader
    project: Path
    differences: tuple[MachineDifference, ...]


def unpack_report(bundle: Path, directory: Path, *, trust: bool) -> UnpackedReport:
    """Unpack ``bundle`` into the new ``directory``.

    Raises :class:`UsageError` if the bundle is invalid or has no build file, if its build file is
    a Python program and ``trust`` is not given, and if the directory exists.
    """
    header, files = read_bundle(bundle)
    _check_build_file(header, files, trust=trust)
    try:
        directory.mkdir(mode=0o700)
    except FileExistsError as error:
        raise UsageError(
            f"{directory} already exists", hint="name a new directory with --directory"
        ) from error
    except OSError as error:
        raise OutsideError(f"cannot create {directory}: {error.strerror}") from error
    for name, content in files.items():
        place = directory / (name if name.startswith(PROJECT_PREFIX) else f"report/{name}")
        place.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with open(descriptor, "wb") as file:
            file.write(content)
    differences = compare_machines(files.get("versions.json", b"{}"))
    return UnpackedReport(header, directory / PROJECT_PREFIX.rstrip("/"), differences)


def _check_build_file(header: ReportHeader, files: Mapping[str, bytes], *, trust: bool) -> None:
    if not header.file:
        raise UsageError("the report has no build file", hint="its files can be read with tar")
    if f"{PROJECT_PREFIX}{header.file}" not in files:
        raise UsageError("the report does not contain its build file")
    if not header.file.endswith(".envd") and not trust:
        raise UsageError(
            f"the report's build file {header.file} is a program, which would run as you",
            hint=f"read it first (tar -xOf … {PROJECT_PREFIX}{header.file}), then use --trust",
        )


def compare_machines(reported: bytes) -> tuple[MachineDifference, ...]:
    """Return the versions in ``reported``, a ``versions.json``, that differ here."""
    try:
        values = json.loads(reported)
    except (ValueError, RecursionError):
        return ()
    if not isinstance(values, dict):
        return ()
    here = describe_machine()
    pairs = {name: str(values.get(name, ""))[:_MAX_VALUE_LENGTH] for name in here}
    return tuple(
        MachineDifference(name, value, here[name])
        for name, value in pairs.items()
        if value != here[name]
    )
