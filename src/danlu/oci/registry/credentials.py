"""Find the credentials that other programs store on this machine: Docker, Podman, and helpers."""

from __future__ import annotations

import base64
import binascii
import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio

from danlu.errors import OutsideError
from danlu.util.process import run
from danlu.util.sanitize import escape_unprintable

_DOCKER_HUB_SERVER = "https://index.docker.io/v1/"
#: The user name with which a helper returns a refresh token (docker-credential-helpers).
_TOKEN_USER = "<token>"
#: Part of the error of a helper that works but has nothing for the server.
_NOT_FOUND = "credentials not found"
_HELPER_TIMEOUT = 60.0
_MAX_REASON_LENGTH = 300


class CredentialHelperError(OutsideError):
    """A credential helper is missing, failed, or printed something else than credentials."""


@dataclass(frozen=True, slots=True)
class RegistryCredentials:
    """A user name with its password, or an identity token of the OAuth2 flow."""

    username: str = ""
    password: str = field(default="", repr=False)
    identity_token: str = field(default="", repr=False)

    @property
    def basic_authorization(self) -> str:
        """The value of an ``Authorization`` header."""
        pair = f"{self.username}:{self.password}".encode()
        return "Basic " + base64.b64encode(pair).decode()


async def find_docker_credentials(
    host: str, environ: Mapping[str, str] | None = None, *, repository: str = ""
) -> RegistryCredentials | None:
    """Return the credentials for ``host`` from ``docker login`` or ``podman login``, or None.

    Docker's ``config.json`` (in ``DOCKER_CONFIG``, else ``~/.docker``) with its credential helpers
    comes first, then Podman's ``auth.json``, which may have other credentials for ``repository``
    than for the rest of the registry. Raises :class:`CredentialHelperError` if there are none
    because a helper is missing or failed.
    """
    env = os.environ if environ is None else environ
    failure: CredentialHelperError | None = None
    for path in _config_files(env):
        config = _read_config(path)
        helper = find_helper(config, host)
        if helper:
            try:
                credentials = await _ask_helper(helper, server_key(host), env)
            except CredentialHelperError as error:
                credentials, failure = None, failure or error
            if credentials is not None:
                return credentials
        auths = config.get("auths")
        if isinstance(auths, dict):
            credentials = _from_auths(auths, host, repository)
            if credentials is not None:
                return credentials
    if failure is not None:
        raise failure
    return None


def server_key(host: str) -> str:
    """Return the name of a registry in Docker's configuration and for helpers."""
    return _DOCKER_HUB_SERVER if host == "docker.io" else host


def find_helper(config: Mapping[str, Any], host: str) -> str:
    """Return the name of the credential helper for ``host``; empty if none is configured."""
    helpers = config.get("credHelpers")
    chosen = helpers if isinstance(helpers, dict) else {}
    helper = chosen.get(host) or chosen.get(server_key(host)) or config.get("credsStore")
    return helper if isinstance(helper, str) else ""


def find_docker_config(env: Mapping[str, str]) -> Path:
    """Return the path of Docker's ``config.json``."""
    directory = env.get("DOCKER_CONFIG")
    return (Path(directory) if directory else _find_home(env) / ".docker") / "config.json"


def _find_home(env: Mapping[str, str]) -> Path:
    return Path(env.get("HOME") or os.path.expanduser("~"))


def _config_files(env: Mapping[str, str]) -> list[Path]:
    files = [find_docker_config(env)]
    if env.get("REGISTRY_AUTH_FILE"):
        files.append(Path(env["REGISTRY_AUTH_FILE"]))
    # Without a session (root, cron) Podman uses /run/containers/UID (containers-auth.json(5)).
    session = env.get("XDG_RUNTIME_DIR")
    runtime = Path(session, "containers") if session else Path(f"/run/containers/{os.getuid()}")
    files.append(runtime / "auth.json")
    return [*files, _find_home(env) / ".config" / "containers" / "auth.json"]


def _read_config(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _from_auths(auths: dict[str, Any], host: str, repository: str) -> RegistryCredentials | None:
    """Return the credentials of the key that matches most of ``host/repository``."""
    name = f"{host}/{repository}"
    places = {key: normalize_key(key) for key in auths}
    matches = [key for key, place in places.items() if f"{name}/".startswith(f"{place}/")]
    for key in sorted(matches, key=lambda key: len(places[key]), reverse=True):
        entry = auths[key]
        credentials = _from_entry(entry) if isinstance(entry, dict) else None
        if credentials is not None:
            return credentials
    return None


def normalize_key(key: str) -> str:
    """Return ``HOST`` or ``HOST/NAMESPACE`` of a key, which old versions of Docker wrote as URL."""
    bare = key.removeprefix("https://").removeprefix("http://").rstrip("/")
    host, _, path = bare.partition("/")
    host = "docker.io" if host == "index.docker.io" else host
    is_namespace = path not in ("", "v1", "v2") and "://" not in key
    return f"{host}/{path}" if is_namespace else host


def _from_entry(entry: dict[str, Any]) -> RegistryCredentials | None:
    token = entry.get("identitytoken")
    name, password = entry.get("username"), entry.get("password")
    auth = entry.get("auth")
    if isinstance(auth, str) and auth:
        try:
            text = base64.b64decode(auth, validate=True).decode()
        except (binascii.Error, UnicodeDecodeError):
            return None
        name, _, password = text.partition(":")
        # Docker strips trailing NULs too: its decoder fills a fixed buffer.
        password = password.strip("\0")
    if isinstance(token, str) and token:
        return RegistryCredentials(str(name or ""), identity_token=token)
    if isinstance(name, str) and name and isinstance(password, str):
        return RegistryCredentials(name, password)
    return None


async def _ask_helper(
    helper: str, server: str, env: Mapping[str, str]
) -> RegistryCredentials | None:
    """Run a credential helper (docker-credential-helpers): server on stdin, JSON on stdout.

    Returns None if it has no credentials for the server.
    """
    output = None if "/" in helper else await run_helper(helper, "get", server.encode(), env)
    return None if output is None else _parse_helper_output(f"docker-credential-{helper}", output)


async def run_helper(helper: str, action: str, data: bytes, env: Mapping[str, str]) -> bytes | None:
    """Run ``docker-credential-NAME ACTION`` with ``data`` on stdin and return its output.

    Returns None if it knows no credentials for the server. Raises :class:`CredentialHelperError` if
    it is missing or failed.
    """
    program = f"docker-credential-{helper}"
    path = shutil.which(program, path=env.get("PATH")) if "/" not in helper else None
    if path is None:
        raise CredentialHelperError(f"{program} is not on PATH")
    try:
        with anyio.fail_after(_HELPER_TIMEOUT):
            done = await run([path, action], input=data, env=dict(env))
    except TimeoutError:
        raise CredentialHelperError(
            f"{program} did not answer within {_HELPER_TIMEOUT:g} seconds"
        ) from None
    except OSError as error:
        raise CredentialHelperError(f"cannot run {program}: {error.strerror}") from error
    if done.code != 0:
        # Helpers print their errors to stdout; what is on stderr are messages of libraries.
        reason = _last_line(done.stdout) or _last_line(done.stderr) or f"exit code {done.code}"
        if _NOT_FOUND in reason:
            return None
        raise CredentialHelperError(f"{program} failed: {reason}")
    return done.stdout


def _parse_helper_output(program: str, output: bytes) -> RegistryCredentials | None:
    try:
        value = json.loads(output)
    except ValueError as error:
        raise CredentialHelperError(f"{program} printed no JSON") from error
    name = value.get("Username") if isinstance(value, dict) else None
    secret = value.get("Secret") if isinstance(value, dict) else None
    if not isinstance(name, str) or not isinstance(secret, str):
        raise CredentialHelperError(f"{program} printed no Username and Secret")
    if not secret:
        return None
    if name == _TOKEN_USER:
        return RegistryCredentials(identity_token=secret)
    return RegistryCredentials(name, secret)


def _last_line(output: bytes) -> str:
    lines = output.decode(errors="replace").strip().splitlines()
    return escape_unprintable(lines[-1][:_MAX_REASON_LENGTH]) if lines else ""
