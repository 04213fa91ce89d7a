"""Authorization: find the credentials of a registry and exchange them for tokens."""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import anyio
import msgspec

from danlu.errors import OutsideError
from danlu.oci.registry.errors import response_error, translate_client_errors
from danlu.util.process import run

_DOCKER_HUB_SERVER = "https://index.docker.io/v1/"
#: The user name with which a helper returns a refresh token (docker-credential-helpers).
_TOKEN_USER = "<token>"
_HELPER_TIMEOUT = 60.0

#: Lifetime of a token without ``expires_in`` (distribution, docs/spec/auth/token.md).
_DEFAULT_TOKEN_SECONDS = 60
#: A token is renewed this long before it expires.
_EXPIRY_MARGIN_SECONDS = 10
_MAX_TOKEN_RESPONSE = 1 << 20
_CLIENT_ID = "danlu"

_CHALLENGE = re.compile(r"\s*,?\s*([A-Za-z][\w-]*)\s+(?=[A-Za-z])")
_PARAMETER = re.compile(r'\s*,?\s*([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


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
    host: str, environ: Mapping[str, str] | None = None
) -> RegistryCredentials | None:
    """Return the credentials for ``host`` from ``docker login`` or ``podman login``, or None.

    Docker's ``config.json`` (in ``DOCKER_CONFIG``, else ``~/.docker``) with its credential helpers
    comes first, then Podman's ``auth.json``. A helper that is missing or fails counts as having no
    credentials, because most images need no account.
    """
    env = os.environ if environ is None else environ
    for path in _config_files(env):
        config = _read_config(path)
        helpers = config.get("credHelpers")
        helper = helpers.get(host) if isinstance(helpers, dict) else None
        helper = helper or config.get("credsStore")
        if isinstance(helper, str) and helper:
            credentials = await _ask_helper(
                helper, _DOCKER_HUB_SERVER if host == "docker.io" else host, env
            )
            if credentials is not None:
                return credentials
        auths = config.get("auths")
        credentials = _from_auths(auths, host) if isinstance(auths, dict) else None
        if credentials is not None:
            return credentials
    return None


def _config_files(env: Mapping[str, str]) -> list[Path]:
    home = Path(env.get("HOME") or os.path.expanduser("~"))
    docker = Path(env["DOCKER_CONFIG"]) if env.get("DOCKER_CONFIG") else home / ".docker"
    files = [docker / "config.json"]
    if env.get("REGISTRY_AUTH_FILE"):
        files.append(Path(env["REGISTRY_AUTH_FILE"]))
    if env.get("XDG_RUNTIME_DIR"):
        files.append(Path(env["XDG_RUNTIME_DIR"]) / "containers" / "auth.json")
    return [*files, home / ".config" / "containers" / "auth.json"]


def _read_config(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _from_auths(auths: dict[str, Any], host: str) -> RegistryCredentials | None:
    for key, entry in auths.items():
        if _host_of(key) == host and isinstance(entry, dict):
            credentials = _from_entry(entry)
            if credentials is not None:
                return credentials
    return None


def _host_of(key: str) -> str:
    """Return the host of a key, which may be a URL as old versions of Docker wrote it."""
    host = key.removeprefix("https://").removeprefix("http://").partition("/")[0]
    return "docker.io" if host == "index.docker.io" else host


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
    """Run a credential helper (docker-credential-helpers): server on stdin, JSON on stdout."""
    if "/" in helper:
        return None
    try:
        with anyio.fail_after(_HELPER_TIMEOUT):
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
        return RegistryCredentials(identity_token=secret)
    return RegistryCredentials(name, secret)


class AuthChallenge(msgspec.Struct, frozen=True):
    """One way to authenticate: the scheme in lower case and its parameters."""

    scheme: str
    parameters: Mapping[str, str]


def parse_challenges(headers: list[str]) -> list[AuthChallenge]:
    """Parse ``WWW-Authenticate`` headers; each may hold several challenges (RFC 9110, 11.6.1)."""
    challenges = []
    for text in headers:
        position = 0
        while match := _CHALLENGE.match(text, position):
            scheme, position = match[1].lower(), match.end()
            parameters = {}
            while parameter := _PARAMETER.match(text, position):
                quoted = parameter[2]
                parameters[parameter[1].lower()] = (
                    parameter[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
                )
                position = parameter.end()
            challenges.append(AuthChallenge(scheme, parameters))
        if not challenges and text.strip().lower() in ("basic", "bearer"):
            challenges.append(AuthChallenge(text.strip().lower(), {}))
    return challenges


class _TokenResponse(msgspec.Struct):
    token: str = ""
    access_token: str = ""
    expires_in: float | None = None


class Authorizer:
    """Provide the ``Authorization`` header for a scope; tokens are cached until they expire.

    ``lookup`` is called for credentials once, when the registry first asks for some.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        host: str,
        lookup: Callable[[str], Awaitable[RegistryCredentials | None]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._host = host
        self._lookup = lookup
        self._clock = clock
        self._challenge: AuthChallenge | None = None
        self._credentials: RegistryCredentials | None = None
        self._lookup_done = False
        self._tokens: dict[str, tuple[str, float]] = {}
        self._lock = anyio.Lock()

    def accept_challenge(self, headers: list[str]) -> bool:
        """Store the challenge of a 401 response; return whether its scheme is supported."""
        challenges = parse_challenges(headers)
        for scheme in ("bearer", "basic"):
            for challenge in challenges:
                if challenge.scheme == scheme:
                    self._challenge = challenge
                    return True
        return False

    def discard_token(self, scope: str) -> None:
        """Forget the token for ``scope`` after the registry rejected it."""
        self._tokens.pop(scope, None)

    async def authorization_header(self, scope: str) -> str | None:
        """Return the header for ``scope``, or None if the registry has not asked for one yet."""
        if self._challenge is None:
            return None
        # Concurrent requests for the same scope share one token request.
        async with self._lock:
            if self._challenge.scheme == "basic":
                credentials = await self._find_credentials()
                return credentials.basic_authorization if credentials is not None else None
            token, end = self._tokens.get(scope, ("", 0.0))
            if not token or self._clock() > end:
                token, life = await self._fetch_token(self._challenge, scope)
                self._tokens[scope] = (
                    token,
                    self._clock() + life - min(_EXPIRY_MARGIN_SECONDS, life / 2),
                )
            return f"Bearer {token}"

    async def _find_credentials(self) -> RegistryCredentials | None:
        if not self._lookup_done:
            self._credentials = await self._lookup(self._host)
            self._lookup_done = True
        return self._credentials

    async def _fetch_token(self, challenge: AuthChallenge, scope: str) -> tuple[str, float]:
        realm = challenge.parameters.get("realm", "")
        credentials = await self._find_credentials()
        self._check_realm(realm, credentials)
        form = {"scope": scope} if scope else {}
        if service := challenge.parameters.get("service"):
            form["service"] = service
        with translate_client_errors(self._host):
            if credentials is not None and credentials.identity_token:
                form |= {
                    "grant_type": "refresh_token",
                    "refresh_token": credentials.identity_token,
                    "client_id": _CLIENT_ID,
                }
                request = self._session.post(realm, data=form, allow_redirects=False)
            else:
                headers = (
                    {"Authorization": credentials.basic_authorization}
                    if credentials is not None
                    else {}
                )
                request = self._session.get(realm, params=_query_pairs(form), headers=headers)
            async with request as response:
                if response.status != 200:
                    raise await response_error(response, host=self._host, what=scope or "its login")
                return self._parse_token(await response.content.read(_MAX_TOKEN_RESPONSE))

    def _check_realm(self, realm: str, credentials: RegistryCredentials | None) -> None:
        plain = realm.startswith("http://")
        if not plain and not realm.startswith("https://"):
            raise OutsideError(f"{self._host} sent an invalid token server URL")
        if plain and credentials is not None and not self.allow_plain_http:
            # A compromised registry, or someone in between, could otherwise collect passwords.
            raise OutsideError(
                f"{self._host} asks for the password over unencrypted HTTP; it was not sent",
                hint="the registry's token server must use https",
            )

    #: Whether the registry itself is reached by plain HTTP.
    allow_plain_http = False

    def _parse_token(self, body: bytes) -> tuple[str, float]:
        try:
            answer = msgspec.json.decode(body, type=_TokenResponse)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise OutsideError(f"the token server of {self._host} gave no token") from error
        token = answer.token or answer.access_token
        # A token with control characters could inject headers into our requests.
        if not token or not token.isprintable() or not token.isascii():
            raise OutsideError(f"the token server of {self._host} gave no token")
        return token, answer.expires_in or _DEFAULT_TOKEN_SECONDS


def _query_pairs(form: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return query parameters with one per scope (token.md, "Requesting a Token")."""
    pairs = [(name, value) for name, value in form.items() if name != "scope"]
    return pairs + [("scope", scope) for scope in form.get("scope", "").split()]
