"""Authorization: what a registry asks for, answered with a token or a password."""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Mapping

import aiohttp
import anyio
import msgspec

from danlu.errors import OutsideError
from danlu.oci.registry.credentials import Credentials
from danlu.oci.registry.failures import failure, translated

__all__ = ["Authorizer", "Challenge", "parse_challenges"]

#: Seconds a token lasts where nothing is said of it (distribution, docs/spec/auth/token.md).
_DEFAULT_LIFE = 60
#: Seconds before its end from which a token is not used any more.
_MARGIN = 10
_MAX_TOKEN = 1 << 20
_CLIENT = "danlu"

_CHALLENGE = re.compile(r"\s*,?\s*([A-Za-z][\w-]*)\s+(?=[A-Za-z])")
_PARAMETER = re.compile(r'\s*,?\s*([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


class Challenge(msgspec.Struct, frozen=True):
    """One way to be let in: the scheme in lower case and its parameters."""

    scheme: str
    parameters: Mapping[str, str]


def parse_challenges(headers: list[str]) -> list[Challenge]:
    """The values of ``WWW-Authenticate``, each of which may hold several (RFC 9110, 11.6.1)."""
    found = []
    for text in headers:
        at = 0
        while match := _CHALLENGE.match(text, at):
            scheme, at = match[1].lower(), match.end()
            parameters = {}
            while one := _PARAMETER.match(text, at):
                quoted = one[2]
                parameters[one[1].lower()] = (
                    one[3] if quoted is None else re.sub(r"\\(.)", r"\1", quoted)
                )
                at = one.end()
            found.append(Challenge(scheme, parameters))
        if not found and text.strip().lower() in ("basic", "bearer"):
            found.append(Challenge(text.strip().lower(), {}))
    return found


class _Token(msgspec.Struct):
    token: str = ""
    access_token: str = ""
    expires_in: float | None = None


class Authorizer:
    """Gives the ``Authorization`` header for a scope; tokens are kept until they end.

    ``lookup`` is asked for credentials once, when the registry wants some.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        host: str,
        lookup: Callable[[str], Awaitable[Credentials | None]],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._host = host
        self._lookup = lookup
        self._clock = clock
        self._challenge: Challenge | None = None
        self._credentials: Credentials | None = None
        self._looked = False
        self._tokens: dict[str, tuple[str, float]] = {}
        self._lock = anyio.Lock()

    def challenged(self, headers: list[str]) -> bool:
        """Take in what a 401 asks for; whether we know such a way."""
        challenges = parse_challenges(headers)
        for scheme in ("bearer", "basic"):
            for one in challenges:
                if one.scheme == scheme:
                    self._challenge = one
                    return True
        return False

    def forget(self, scope: str) -> None:
        """The token for ``scope`` was refused."""
        self._tokens.pop(scope, None)

    async def header(self, scope: str) -> str | None:
        """The header's value for ``scope``; None where the registry asks for nothing yet."""
        if self._challenge is None:
            return None
        async with self._lock:
            if self._challenge.scheme == "basic":
                credentials = await self._known()
                return credentials.basic if credentials is not None else None
            token, end = self._tokens.get(scope, ("", 0.0))
            if not token or self._clock() > end:
                token, life = await self._fetch(self._challenge, scope)
                self._tokens[scope] = (token, self._clock() + life - min(_MARGIN, life / 2))
            return f"Bearer {token}"

    async def _known(self) -> Credentials | None:
        if not self._looked:
            self._credentials = await self._lookup(self._host)
            self._looked = True
        return self._credentials

    async def _fetch(self, challenge: Challenge, scope: str) -> tuple[str, float]:
        realm = challenge.parameters.get("realm", "")
        credentials = await self._known()
        self._check_realm(realm, credentials)
        form = {"scope": scope} if scope else {}
        if service := challenge.parameters.get("service"):
            form["service"] = service
        with translated(self._host):
            if credentials is not None and credentials.identity_token:
                form |= {
                    "grant_type": "refresh_token",
                    "refresh_token": credentials.identity_token,
                    "client_id": _CLIENT,
                }
                request = self._session.post(realm, data=form, allow_redirects=False)
            else:
                headers = {"Authorization": credentials.basic} if credentials is not None else {}
                request = self._session.get(realm, params=_pairs(form), headers=headers)
            async with request as response:
                if response.status != 200:
                    raise await failure(response, host=self._host, what=scope or "its login")
                return self._read(await response.content.read(_MAX_TOKEN))

    def _check_realm(self, realm: str, credentials: Credentials | None) -> None:
        plain = realm.startswith("http://")
        if not plain and not realm.startswith("https://"):
            raise OutsideError(f"{self._host} sends us to a token server without an address")
        if plain and credentials is not None and not self.may_speak_plainly:
            # A registry that is broken into, or someone on the way, could collect passwords.
            raise OutsideError(
                f"{self._host} asks for the password to be sent unencrypted, which danlu does not",
                hint="the registry's token server needs https",
            )

    #: Whether the registry itself is spoken to by plain HTTP.
    may_speak_plainly = False

    def _read(self, body: bytes) -> tuple[str, float]:
        try:
            answer = msgspec.json.decode(body, type=_Token)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise OutsideError(f"the token server of {self._host} gave no token") from error
        token = answer.token or answer.access_token
        if not token or not token.isprintable() or not token.isascii():
            raise OutsideError(f"the token server of {self._host} gave no token")
        return token, answer.expires_in or _DEFAULT_LIFE


def _pairs(form: Mapping[str, str]) -> list[tuple[str, str]]:
    """Scopes are separate parameters (token.md, "Requesting a Token")."""
    pairs = [(name, value) for name, value in form.items() if name != "scope"]
    return pairs + [("scope", one) for one in form.get("scope", "").split()]
