"""Read files of public keys in OpenSSH's format."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Sequence
from pathlib import Path

from danlu.errors import UsageError

_MAX_FILE_SIZE = 1 << 20
_KEY_TYPE = re.compile(rb"(ssh|ecdsa|sk-ssh|sk-ecdsa)-[a-z0-9@.-]+")


def read_authorized_keys(path: Path) -> tuple[str, ...]:
    """Return the public keys of a file in OpenSSH's format, one per line (sshd(8)).

    Options before a key are not supported, because they would restrict what it may do. Raises
    :class:`UsageError` if the file cannot be read or has an invalid line.
    """
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_FILE_SIZE + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}") from error
    if len(data) > _MAX_FILE_SIZE:
        raise UsageError(f"{path} is too large for a file of public keys")
    keys = []
    for number, line in enumerate(data.splitlines(), 1):
        words = line.split(maxsplit=2)
        if not words or words[0].startswith(b"#"):
            continue
        if not _is_public_key(words):
            raise UsageError(
                f"{path}:{number}: not a public key",
                hint="write keys as in ~/.ssh/id_ed25519.pub, without options",
            )
        keys.append(b" ".join(words[:2]).decode())
    if not keys:
        raise UsageError(f"{path} has no public keys")
    return tuple(keys)


def _is_public_key(words: Sequence[bytes]) -> bool:
    """Return whether these are a key's type and its data, which begins with the type (RFC 4253)."""
    if len(words) < 2 or not _KEY_TYPE.fullmatch(words[0]):
        return False
    try:
        data = base64.b64decode(words[1], validate=True)
    except binascii.Error:
        return False
    return data.startswith(len(words[0]).to_bytes(4, "big") + words[0])
