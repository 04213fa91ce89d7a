"""Who we are to a registry: what ``docker login`` or ``podman login`` left on this machine."""

from __future__ import annotations

import base64
import binascii
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from danlu.util.process import run

__all__ = ["Credentials", "docker_credentials"]

_HUB = "https://index.docker.io/v1/"
#: The user name that says that the secret is a refresh token (docker-credential-helpers).
_TOKEN_USER = "<token>"
_HELPER_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Credentials:
    """A name with its password, or an identity token of the OAuth2 flow."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic(self) -> str:
        """The value of an ``Authorization`` header."""
        pair = f"{self.username}:{self.password}".encode()
        return "Basic " + base64.b64encode(pair).decode()


async def docker_credentials(
    host: str, environ: Mapping[str, str] | None = None
) -> Credentials | None:
    """The credentials for ``host``, None where there are none.

    Docker's ``config.json`` (in ``DOCKER_CONFIG``, else ``~/.docker``) is looked into first, with
    its credential helpers, then Podman's ``auth.json``. A helper that is missing or fails counts
    as one that knows nothing: most images need no account.
    """
    env = os.environ if environ is None else environ
    for path in _files(env):
        config = _read(path)
        helpers = config.get("credHelpers")
        helper = helpers.get(host) if isinstance(helpers, dict) else None
        helper = helper or config.get("credsStore")
        if isinstance(helper, str) and helper:
            found = await _ask(helper, _HUB if host == "docker.io" else host, env)
            if found is not None:
                return found
        auths = config.get("auths")
        found = _from_auths(auths, host) if isinstance(auths, dict) else None
        if found is not None:
            return found
    return None


def _files(env: Mapping[str, str]) -> list[Path]:
    home = Path(env.get("HOME") or os.path.expanduser("~"))
    docker = Path(env["DOCKER_CONFIG"]) if env.get("DOCKER_CONFIG") else home / ".docker"
    files = [docker / "config.json"]
    if env.get("REGISTRY_AUTH_FILE"):
        files.append(Path(env["REGISTRY_AUTH_FILE"]))
    if env.get("XDG_RUNTIME_DIR"):
        files.append(Path(env["XDG_RUNTIME_DIR"]) / "containers" / "auth.json")
    return [*files, home / ".config" / "containers" / "auth.json"]


def _read(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _from_auths(auths: dict[str, Any], host: str) -> Credentials | None:
    for key, entry in auths.items():
        if _host_of(key) == host and isinstance(entry, dict):
            found = _from_entry(entry)
            if found is not None:
                return found
    return None


def _host_of(key: str) -> str:
    """Keys are hosts, or addresses as old versions of Docker wrote them."""
    host = key.removeprefix("https://").removeprefix("http://").partition("/")[0]
    return "docker.io" if host == "index.docker.io" else host


def _from_entry(entry: dict[str, Any]) -> Credentials | None:
    token = entry.get("identitytoken")
    name, password = entry.get("username"), entry.get("password")
    auth = entry.get("auth")
    if isinstance(auth, str) and auth:
        try:
            text = base64.b64decode(auth, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        name, _, password = text.partition(":")
        # Docker's own encoder leaves a NUL at the end of what it decodes from a fixed buffer.
        password = password.strip("\0")
    if isinstance(token, str) and token:
        return Credentials(str(name or ""), identity_token=token)
    if isinstance(name, str) and name and isinstance(password, str):
        return Credentials(name, password)
    return None


async def _ask(helper: str, server: str, env: Mapping[str, str]) -> Credentials | None:
    """The protocol of docker-credential-helpers: the server on stdin, JSON on stdout."""
    if "/" in helper:
        return None
    try:
        with anyio.fail_after(_HELPER_SECONDS):
            done = await run(
                [f"docker-credential-{helper}", "get"], input=server.encode(), env=dict(env)
            )
        value = json.loads(done.stdout) if done.code == 0 else {}
    except (OSError, ValueError, TimeoutError):
        return None
    if not isinstance(value, dict):
        return None
    name, secret = value.get("Username"), value.get("Secret")
    if not isinstance(name, str) or not isinstance(secret, str) or not secret:
        return None
    if name == _TOKEN_USER:
        return Credentials(identity_token=secret)
    return Credentials(name, secret)
