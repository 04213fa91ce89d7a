"""Credentials in URLs: strip them from what is stored, mask them in what is shown."""

from __future__ import annotations

import re
from typing import TypeVar

T = TypeVar("T")

#: ``user:password@`` or ``token@`` after a scheme; the last ``@`` before the path ends it.
_CREDENTIALS = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://([^/?#\s\"'<>]+)@")

MASK = "***"


def mask_credentials(text: str) -> str:
    """Return ``text`` with the credentials of every URL in it replaced by ``***``.

    The user that ssh logs in as (``ssh://git@host``) is not secret and stays.
    """
    if "@" not in text:
        return text
    return _CREDENTIALS.sub(lambda match: _replace_userinfo(match, f"{MASK}@", f":{MASK}"), text)


def strip_credentials(text: str) -> str:
    """Return ``text`` with the credentials of every URL removed, except for ssh's user."""
    if "@" not in text:
        return text
    return _CREDENTIALS.sub(lambda match: _replace_userinfo(match, "", ""), text)


def _replace_userinfo(match: re.Match[str], userinfo: str, password: str) -> str:
    scheme, credentials = match[1], match[2]
    if scheme.endswith("ssh"):
        user, colon, _ = credentials.partition(":")
        return f"{scheme}://{user}{password if colon else ''}@"
    return f"{scheme}://{userinfo}"


def mask_values(value: T) -> T:
    """Return plain data (strings, lists, tuples, mappings) with all credentials masked."""
    masked: object = value
    if isinstance(value, str):
        masked = mask_credentials(value)
    elif isinstance(value, list):
        masked = [mask_values(item) for item in value]
    elif isinstance(value, tuple):
        masked = tuple(mask_values(item) for item in value)
    elif isinstance(value, dict):
        masked = {mask_values(key): mask_values(item) for key, item in value.items()}
    return masked  # type: ignore[return-value]
