"""The files that describe an installed distribution: RECORD, entry points, INSTALLER, direct_url.

Sources: PyPA specifications "Recording installed projects", "Entry points", "Direct URL data
structure", and PEP 427 for what belongs where in a wheel.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Iterable

import msgspec

from danlu.errors import OutsideError

__all__ = [
    "INSTALLER",
    "Row",
    "console_scripts",
    "direct_url",
    "launcher",
    "new_header",
    "read_record",
    "record_hash",
    "shebang",
    "write_record",
]

INSTALLER = b"danlu\n"

#: The kernel cuts a script's first line there (``BINPRM_BUF_SIZE`` since Linux 5.1 is 256, 128
#: before; the older is the safe one).
_SHEBANG_LIMIT = 127

_OBJECT = re.compile(r"([\w.]+)\s*:\s*([\w.]+)\s*(\[.*\])?", re.ASCII | re.DOTALL)


class Row(msgspec.Struct, frozen=True):
    """One line of RECORD: path as written (relative to site-packages), hash and size or empty."""

    path: str
    hash: str = ""
    size: str = ""


def read_record(text: str, *, owner: str) -> tuple[Row, ...]:
    """The rows of a RECORD; ``owner`` names the distribution in a message."""
    rows = []
    try:
        for fields in csv.reader(io.StringIO(text)):
            if fields:
                path, *rest = fields
                rows.append(Row(path, *[*rest, "", ""][:2]))
    except csv.Error as error:
        raise OutsideError(f"the wheel of {owner} is damaged: RECORD: {error}") from error
    return tuple(rows)


def write_record(rows: Iterable[Row]) -> bytes:
    """RECORD with these rows, sorted by path."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in sorted(rows, key=lambda row: row.path):
        writer.writerow((row.path, row.hash, row.size))
    return text.getvalue().encode("utf-8", "surrogateescape")


def record_hash(data: bytes) -> str:
    """``sha256=…`` in RECORD's spelling: URL-safe base64 without padding."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=")
    return f"sha256={digest.decode()}"


def shebang(interpreter: str) -> bytes:
    """The first lines of a script for ``interpreter``; through ``/bin/sh`` where it is too long."""
    simple = f"#!{interpreter}\n"
    if " " not in interpreter and len(simple) <= _SHEBANG_LIMIT:
        return simple.encode()
    # Read by sh this replaces it by the interpreter; read by Python it is a string.
    quoted = interpreter.replace('"', '\\"')
    return f"#!/bin/sh\n'''exec' \"{quoted}\" \"$0\" \"$@\"\n' '''\n".encode()


def new_header(data: bytes, hosts: Iterable[str], interpreter: str) -> bytes | None:
    """A script with ``interpreter`` in place of a Python of this machine, None where none is named.

    ``hosts`` are the paths under which uv may have written the interpreter it ran with.
    """
    for host in hosts:
        line = f"#!{host}\n".encode()
        trick = f"#!/bin/sh\n'''exec' '{host}' \"$0\" \"$@\"\n' '''\n".encode()
        for header in (line, trick, trick.replace(f"'{host}'".encode(), f'"{host}"'.encode())):
            if data.startswith(header):
                return shebang(interpreter) + data[len(header) :]
        if data.startswith(line[:-1] + b" "):
            _, _, rest = data.partition(b"\n")
            return shebang(interpreter) + rest
    return None


def console_scripts(text: str, *, owner: str) -> dict[str, tuple[str, str]]:
    """Name of each script to (module, object) from ``entry_points.txt``, GUI scripts too."""
    import configparser

    parser = configparser.RawConfigParser(delimiters=("=",), strict=False, allow_no_value=True)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(text)
    except configparser.Error as error:
        raise OutsideError(f"the wheel of {owner} is damaged: entry_points.txt: {error}") from error
    found: dict[str, tuple[str, str]] = {}
    for section in ("gui_scripts", "console_scripts"):
        for name, value in parser.items(section) if parser.has_section(section) else ():
            match = _OBJECT.fullmatch((value or "").strip())
            if match is None:
                raise OutsideError(
                    f"the wheel of {owner} is damaged: script {name!r} is {value!r}, "
                    "which names no function"
                )
            if not name or "/" in name or name in (".", "..") or "\0" in name:
                raise OutsideError(f"the wheel of {owner} is damaged: script name {name!r}")
            found[name] = (match[1], match[2])
    return found


def launcher(module: str, function: str, interpreter: str) -> bytes:
    """The program of an entry point."""
    first = function.partition(".")[0]
    return (
        shebang(interpreter)
        + (
            "import sys\n"
            f"from {module} import {first}\n\n"
            'if __name__ == "__main__":\n'
            f"    sys.exit({function}())\n"
        ).encode()
    )


def direct_url(location: str, sha256: str) -> bytes:
    """``direct_url.json`` for an archive that the user named by its URL, without credentials."""
    clean = re.sub(r"^(\w+://)[^/@]*@", r"\1", location)
    value = {"archive_info": {"hashes": {"sha256": sha256}}, "url": clean}
    return json.dumps(value, sort_keys=True).encode()
