"""The files that describe an installed distribution: RECORD, entry points, INSTALLER,
direct_url.

Sources: PyPA specifications "Recording installed projects", "Entry points", "Direct URL data
structure", and PEP 427 for the layout of a wheel.
"""

from __future__ import annotations

import base64
import configparser
import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable

import msgspec

from danlu.environment.package_names import normalize_name
from danlu.errors import OutsideError
from danlu.util.urls import strip_credentials

INSTALLER = b"danlu\n"

#: The kernel truncates a script's first line here (``BINPRM_BUF_SIZE`` is 256 since Linux 5.1, but
#: 128 before; images may run on older kernels).
_SHEBANG_LIMIT = 127

_OBJECT_REFERENCE = re.compile(r"([\w.]+)\s*:\s*([\w.]+)\s*(\[.*\])?", re.ASCII | re.DOTALL)


class InvalidWheel(OutsideError):
    """A wheel that violates the specification; ``name`` is its normalised name."""

    def __init__(
        self, name: str, reason: str, *, hint: str = "", details: tuple[str, ...] = ()
    ) -> None:
        super().__init__(f"the wheel of {name} is invalid: {reason}", hint=hint, details=details)
        self.name = normalize_name(name)


class RecordRow(msgspec.Struct, frozen=True):
    """A row of RECORD: path relative to site-packages, hash and size (may be empty)."""

    path: str
    hash: str = ""
    size: str = ""


def read_record(text: str, *, owner: str) -> tuple[RecordRow, ...]:
    """Parse a RECORD file; ``owner`` is the distribution's name in error messages."""
    rows = []
    try:
        for fields in csv.reader(io.StringIO(text)):
            if fields:
                path, *rest = fields
                rows.append(RecordRow(path, *[*rest, "", ""][:2]))
    except csv.Error as error:
        raise InvalidWheel(owner, f"RECORD: {error}") from error
    return tuple(rows)


def write_record(rows: Iterable[RecordRow]) -> bytes:
    """Format a RECORD file with these rows, sorted by path."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in sorted(rows, key=lambda row: row.path):
        writer.writerow((row.path, row.hash, row.size))
    return text.getvalue().encode("utf-8", "surrogateescape")


def record_hash(data: bytes) -> str:
    """Return ``sha256=…`` in RECORD's encoding: URL-safe base64 without padding."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


def make_shebang(interpreter: str) -> bytes:
    """Return the first lines of a script; via ``/bin/sh`` if the path is too long."""
    simple = f"#!{interpreter}\n"
    if " " not in interpreter and len(simple) <= _SHEBANG_LIMIT:
        return simple.encode()
    # sh executes this line, which replaces sh by the interpreter; Python reads it as a string.
    quoted = interpreter.replace('"', '\\"')
    return f"#!/bin/sh\n'''exec' \"{quoted}\" \"$0\" \"$@\"\n' '''\n".encode()


def replace_shebang(data: bytes, hosts: Iterable[str], interpreter: str) -> bytes | None:
    """Return a script with ``interpreter`` instead of this machine's Python; None if it has no
    such line.

    ``hosts`` are the paths under which uv may have written the interpreter it ran with.
    """
    for host in hosts:
        line = f"#!{host}\n".encode()
        trick = f"#!/bin/sh\n'''exec' '{host}' \"$0\" \"$@\"\n' '''\n".encode()
        for header in (line, trick, trick.replace(f"'{host}'".encode(), f'"{host}"'.encode())):
            if data.startswith(header):
                return make_shebang(interpreter) + data[len(header) :]
        if data.startswith(line[:-1] + b" "):
            _, _, rest = data.partition(b"\n")
            return make_shebang(interpreter) + rest
    return None


def parse_scripts(text: str, *, owner: str) -> dict[str, tuple[str, str]]:
    """Parse ``entry_points.txt``: map each script, including GUI scripts, to (module, object)."""
    parser = configparser.RawConfigParser(delimiters=("=",), strict=False, allow_no_value=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise InvalidWheel(owner, f"entry_points.txt: {error}") from error
    scripts: dict[str, tuple[str, str]] = {}
    for section in ("gui_scripts", "console_scripts"):
        for name, value in parser.items(section) if parser.has_section(section) else ():
            match = _OBJECT_REFERENCE.fullmatch((value or "").strip())
            if match is None:
                raise InvalidWheel(
                    owner, f"script {name!r} has an invalid object reference {value!r}"
                )
            if not name or "/" in name or name in (".", "..") or "\0" in name:
                raise InvalidWheel(owner, f"invalid script name {name!r}")
            scripts[name] = (match[1], match[2])
    return scripts


def render_launcher(module: str, function: str, interpreter: str) -> bytes:
    """Return the program of an entry point."""
    first = function.partition(".")[0]
    return (
        make_shebang(interpreter)
        + (
            "import sys\n"
            f"from {module} import {first}\n\n"
            'if __name__ == "__main__":\n'
            f"    sys.exit({function}())\n"
        ).encode()
    )


def render_direct_url(location: str, sha256: str) -> bytes:
    """Return ``direct_url.json`` for an archive specified by URL, without credentials."""
    clean = strip_credentials(location)
    value = {"archive_info": {"hashes": {"sha256": sha256}}, "url": clean}
    return json.dumps(value, sort_keys=True).encode()
