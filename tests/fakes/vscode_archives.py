"""Archives of VS Code's server and its command line, with scripts in the place of programs."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from danlu.engine.vscode_servers import machine_architecture

COMMIT = "0123456789abcdef" * 2 + "01234567"
_ELF_MACHINES = {"x64": 62, "arm64": 183, "armhf": 40}


def make_elf(architecture: str = "", text: bytes = b"") -> bytes:
    """The header of a program for a processor, this machine's by default, followed by a text."""
    number = _ELF_MACHINES[architecture or machine_architecture()]
    return b"\x7fELF\2\1\1" + bytes(11) + number.to_bytes(2, "little") + bytes(44) + text


def server_files(
    *, architecture: str = "", script: str = "#!/bin/sh\necho $1 1.105.1\n", **product: Any
) -> dict[str, bytes]:
    """The files of a server; ``product`` replaces fields of its ``product.json``."""
    fields = {
        "commit": COMMIT,
        "quality": "stable",
        "nameShort": "Code",
        "version": "1.105.1",
        "serverApplicationName": "code-server",
        "serverDataFolderName": ".vscode-server",
        **product,
    }
    return {
        "product.json": json.dumps(fields).encode(),
        "node": make_elf(architecture),
        f"bin/{fields['serverApplicationName']}": script.encode(),
    }


def write_archive(path: Path, files: dict[str, bytes], *, top: str = "") -> Path:
    """Write a compressed tar, with all files below the directory ``top``, owned by some user."""
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{top}{name}")
            entry.size, entry.mode, entry.uid, entry.gid = len(content), 0o755, 1001, 1001
            archive.addfile(entry, io.BytesIO(content))
    return path


def make_server(path: Path, **fields: Any) -> Path:
    """Write an archive as Microsoft's builds have it."""
    return write_archive(path, server_files(**fields), top="vscode-server-linux-x64/")


def make_cli(path: Path, commit: str = COMMIT, *, architecture: str = "") -> Path:
    """Write an archive of the command line of the server with that commit."""
    return write_archive(path, {"code": make_elf(architecture, b"x\0" + commit.encode() + b"y")})
