"""Find the credentials that other programs store on this machine: Docker, Podman, and helpers."""

from __future__ import annotations

import base64
import binascii
import json
import math
import os
import shutil
import time
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from danlu.errors import DanluError, OutsideError
from danlu.oci.registry.clouds import CloudRegistry, find_cloud
from danlu.oci.registry.ecr import request_ecr_password
from danlu.util.process import run
from danlu.util.sanitize import escape_unprintable

_DOCKER_HUB_SERVER = "https://index.docker.io/v1/"
#: The user name with which a helper returns a refresh token (docker-credential-helpers).
_TOKEN_USER = "<token>"
#: Part of the error of a helper that works but has nothing for the server.
_NOT_FOUND = "credentials not found"
_HELPER_TIMEOUT = 60.0
_MAX_REASON_LENGTH = 300
#: What a helper answered is used again this long, so that the requests of one command share it.
_ANSWER_SECONDS = 600.0


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


#: Returns credentials for a host that are not among those that it rejected.
CredentialLookup = Callable[
    [str, Collection[RegistryCredentials]], Awaitable[RegistryCredentials | None]
]

#: What helpers and clouds answered in this process, and when: by program or cloud, and server.
_answers: dict[tuple[str, ...], tuple[RegistryCredentials, float]] = {}


async def find_docker_credentials(
    host: str,
    rejected: Collection[RegistryCredentials] = (),
    environ: Mapping[str, str] | None = None,
    *,
    repository: str = "",
    push: bool = False,
    ask_cloud: bool = True,
) -> RegistryCredentials | None:
    """Return the credentials for ``host`` from ``docker login`` or ``podman login``, or None.

    Docker's ``config.json`` (in ``DOCKER_CONFIG``, else ``~/.docker``) with its credential helpers
    comes first, then Podman's ``auth.json``, which may have other credentials for ``repository``
    than for the rest of the registry, then the installed helpers of the registry's cloud, or its
    SDK (with ``ask_cloud``). ``rejected`` are credentials that the registry rejected, or does not
    accept any more: they are not returned again, and helpers are asked for others. ``push`` also
    looks for a login that only a push needs. Raises :class:`CredentialHelperError` if there are
    none because a helper is missing or failed.
    """
    env = os.environ if environ is None else environ
    failure: CredentialHelperError | None = None
    cloud = find_cloud(host) if ask_cloud else None
    # The images of some registries are public, and a login would only take time.
    needed = cloud if cloud is not None and (push or cloud.needs_login) else None
    for find in _list_sources(host, needed, rejected, env, repository):
        try:
            credentials = await find()
        except CredentialHelperError as error:
            failure = failure or error
            continue
        if credentials is not None and credentials not in rejected:
            return credentials
    if failure is not None:
        raise failure
    return None


def _list_sources(
    host: str,
    cloud: CloudRegistry | None,
    rejected: Collection[RegistryCredentials],
    env: Mapping[str, str],
    repository: str,
) -> Iterator[Callable[[], Awaitable[RegistryCredentials | None]]]:
    """Yield functions that return credentials, those that the user configured first."""
    asked = set()
    for path in _config_files(env):
        config = _read_config(path)
        if helper := find_helper(config, host):
            asked.add(helper)
            yield partial(_ask_helper, helper, server_key(host), rejected, env)
        auths = config.get("auths")
        if isinstance(auths, dict):
            yield partial(_from_auths, auths, host, repository)
    if cloud is None:
        return
    for helper in cloud.helpers:
        if helper not in asked and find_helper_program(helper, env):
            yield partial(_ask_helper, helper, host, rejected, env)
    if cloud.is_aws:
        yield partial(_ask_ecr, host, cloud, rejected)


async def _ask_ecr(
    host: str, cloud: CloudRegistry, rejected: Collection[RegistryCredentials]
) -> RegistryCredentials | None:
    async def ask() -> RegistryCredentials | None:
        try:
            return RegistryCredentials(*await request_ecr_password(host, cloud))
        except DanluError as error:
            # As for a helper, this matters only if the registry denies access.
            raise CredentialHelperError(error.message, hint=error.hint) from error

    return await _reuse_answer(("ecr", host), rejected, ask)


async def _reuse_answer(
    key: tuple[str, ...],
    rejected: Collection[RegistryCredentials],
    ask: Callable[[], Awaitable[RegistryCredentials | None]],
) -> RegistryCredentials | None:
    """Return what this process was answered before, unless it is old or was rejected."""
    known, asked_at = _answers.get(key, (None, -math.inf))
    if (
        known is not None
        and known not in rejected
        and time.monotonic() < asked_at + _ANSWER_SECONDS
    ):
        return known
    answer = await ask()
    if answer is not None:
        _answers[key] = (answer, time.monotonic())
    return answer


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


async def _from_auths(
    auths: dict[str, Any], host: str, repository: str
) -> RegistryCredentials | None:
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
    helper: str, server: str, rejected: Collection[RegistryCredentials], env: Mapping[str, str]
) -> RegistryCredentials | None:
    """Run a credential helper (docker-credential-helpers): server on stdin, JSON on stdout.

    Returns None if it has no credentials for the server.
    """
    if "/" in helper:
        return None

    async def ask() -> RegistryCredentials | None:
        output = await run_helper(helper, "get", server.encode(), env)
        return None if output is None else _parse_helper_output(helper, output)

    places = (env.get(name, "") for name in ("PATH", "HOME", "DOCKER_CONFIG"))
    return await _reuse_answer((helper, server, *places), rejected, ask)


def find_helper_program(helper: str, env: Mapping[str, str]) -> str:
    """Return the path of ``docker-credential-NAME``; empty if it is not installed.

    A relative directory on PATH does not count: it would be one of the project.
    """
    directories = env.get("PATH", os.defpath).split(os.pathsep)
    path = os.pathsep.join(filter(os.path.isabs, directories))
    # With an empty path shutil.which would search that of this process.
    found = shutil.which(f"docker-credential-{helper}", path=path) if path else None
    return found or ""


async def run_helper(helper: str, action: str, data: bytes, env: Mapping[str, str]) -> bytes | None:
    """Run ``docker-credential-NAME ACTION`` with ``data`` on stdin and return its output.

    Returns None if it knows no credentials for the server. Raises :class:`CredentialHelperError` if
    it is missing or failed.
    """
    program = f"docker-credential-{helper}"
    path = find_helper_program(helper, env) if "/" not in helper else ""
    if not path:
        raise CredentialHelperError(
            f"{program} is not on PATH",
            hint="install it, or remove it from credsStore or credHelpers in"
            f" {find_docker_config(env)}",
        )
    try:
        with anyio.fail_after(_HELPER_TIMEOUT):
            done = await run([path, action], input=data, env=dict(env))
    except TimeoutError:
        raise CredentialHelperError(
            f"{program} did not answer within {_HELPER_TIMEOUT:g} seconds",
            hint=_repeat_hint(helper),
        ) from None
    except OSError as error:
        raise CredentialHelperError(f"cannot run {program}: {error.strerror}") from error
    if done.code != 0:
        # Helpers print their errors to stdout; what is on stderr are messages of libraries.
        reason = _last_line(done.stdout) or _last_line(done.stderr) or f"exit code {done.code}"
        if _NOT_FOUND in reason:
            return None
        raise CredentialHelperError(f"{program} failed: {reason}", hint=_repeat_hint(helper))
    return done.stdout


def _repeat_hint(helper: str) -> str:
    return f"`echo HOST | docker-credential-{helper} get` must print a login for the registry"


def _parse_helper_output(helper: str, output: bytes) -> RegistryCredentials | None:
    program, hint = f"docker-credential-{helper}", _repeat_hint(helper)
    try:
        value = json.loads(output)
    except ValueError as error:
        raise CredentialHelperError(f"{program} printed no JSON", hint=hint) from error
    name = value.get("Username") if isinstance(value, dict) else None
    secret = value.get("Secret") if isinstance(value, dict) else None
    if not isinstance(name, str) or not isinstance(secret, str):
        raise CredentialHelperError(f"{program} printed no Username and Secret", hint=hint)
    if not secret:
        return None
    if name == _TOKEN_USER:
        return RegistryCredentials(identity_token=secret)
    return RegistryCredentials(name, secret)


def _last_line(output: bytes) -> str:
    """Return the last line; empty if it could be an answer, which contains a password."""
    lines = output.decode(errors="replace").strip().splitlines()
    if not lines or ("secret" in lines[-1].lower() and lines[-1].lstrip().startswith("{")):
        return ""
    return escape_unprintable(lines[-1][:_MAX_REASON_LENGTH])
