"""Authorization: answer a registry's challenge with credentials or a token made from them."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping

import aiohttp
import anyio
import msgspec
from yarl import URL

from danlu.errors import DanluError, OutsideError
from danlu.oci.registry.clouds import explain_cloud_denial, find_cloud
from danlu.oci.registry.credentials import (
    CredentialHelperError,
    CredentialLookup,
    RegistryCredentials,
)
from danlu.oci.registry.errors import (
    RegistryAccessDenied,
    response_error,
    translate_client_errors,
)
from danlu.util.decoding import decode_json

#: Lifetime of a token without ``expires_in`` (distribution, docs/spec/auth/token.md).
_DEFAULT_TOKEN_SECONDS = 60
#: A token is renewed this long before it expires.
_EXPIRY_MARGIN_SECONDS = 10
_MAX_TOKEN_RESPONSE = 1 << 20
_CLIENT_ID = "danlu"
#: A registry that rejects this many credentials gets further ones only after a while.
_MAX_REJECTED = 3
_LOOKUP_SECONDS = 60

_CHALLENGE = re.compile(r"\s*,?\s*([A-Za-z][\w-]*)\s+(?=[A-Za-z])")
_PARAMETER = re.compile(r'\s*,?\s*([\w-]+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s,"]+))')


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

    ``lookup`` is called for credentials when the registry first asks for some, and once more when
    it rejects them, because passwords and tokens of clouds expire within hours.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        host: str,
        lookup: CredentialLookup,
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
        self._looked_up_at = 0.0
        self._rejected: list[RegistryCredentials] = []
        self._problem: CredentialHelperError | None = None
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

    def discard_authorization(self, scope: str, authorization: str) -> None:
        """Forget the token or password after the registry rejected the ``authorization`` with it.

        Requests that ran at the same time were rejected with it, too: only the first of them must
        lead to a new token.
        """
        token, _ = self._tokens.get(scope, ("", 0.0))
        if authorization == f"Bearer {token}":
            del self._tokens[scope]
        elif self._credentials and authorization == self._credentials.basic_authorization:
            self._reject_credentials(self._credentials)

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

    def _reject_credentials(self, credentials: RegistryCredentials) -> None:
        is_recent = self._clock() < self._looked_up_at + _LOOKUP_SECONDS
        if credentials not in self._rejected:
            self._rejected.append(credentials)
        elif is_recent:
            # By another request at the same time; or there are no others.
            return
        # A helper whose logins do not help must not be asked for each request.
        self._lookup_done = is_recent and len(self._rejected) > _MAX_REJECTED

    async def _find_credentials(self) -> RegistryCredentials | None:
        if not self._lookup_done:
            self._lookup_done, self._looked_up_at = True, self._clock()
            try:
                found = await self._lookup(self._host, tuple(self._rejected))
            except CredentialHelperError as error:
                # Most images need no account: it matters only if the registry denies access.
                found, self._problem = None, error
            # Without others the rejected ones are sent again: the registry says what is wrong.
            self._credentials = found or self._credentials
        return self._credentials

    def explain_denial(self, error: DanluError) -> DanluError:
        """Add why there were no credentials, if that is known, to the error of a denied request."""
        if self._problem is not None:
            error.details += (self._problem.message,)
        hint = self._problem.hint if self._problem is not None else ""
        has_login = self._credentials is not None and "expired" not in error.message.lower()
        error.hint = hint or explain_cloud_denial(self._host, has_login=has_login) or error.hint
        return error

    async def _fetch_token(self, challenge: AuthChallenge, scope: str) -> tuple[str, float]:
        credentials = await self._find_credentials()
        try:
            return await self._request_token(challenge, scope, credentials)
        except RegistryAccessDenied:
            if credentials is None:
                raise
            self._reject_credentials(credentials)
            if (renewed := await self._find_credentials()) == credentials:
                raise
            return await self._request_token(challenge, scope, renewed)

    async def _request_token(
        self, challenge: AuthChallenge, scope: str, credentials: RegistryCredentials | None
    ) -> tuple[str, float]:
        realm = challenge.parameters.get("realm", "")
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
                # A redirect would pass the refresh token on to a host that the registry did not
                # name.
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
                    what = _describe_scope(scope)
                    error = await response_error(response, host=self._host, what=what)
                    if response.status == 400 and credentials is not None:
                        # A refresh token that expired or was revoked (RFC 6749, section 5.2).
                        hint = f"log in again: danlu login {self._host}"
                        error = RegistryAccessDenied(
                            f"{self._host} denied access to {what}", hint=hint
                        )
                    raise self.explain_denial(error)
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
        own = URL(f"https://{self._host}").origin()
        if credentials is not None and find_cloud(self._host) and URL(realm).origin() != own:
            # Such a password is often good for more than the registry, and clouds have their token
            # servers on the same host.
            raise OutsideError(
                f"{self._host} asks to send the password to {URL(realm).host}; it was not sent",
                hint="check the settings of proxies and mirrors: this is not how the cloud answers",
            )

    #: Whether the registry itself is reached by plain HTTP.
    allow_plain_http = False

    def _parse_token(self, body: bytes) -> tuple[str, float]:
        try:
            answer = decode_json(body, _TokenResponse)
        except (msgspec.DecodeError, msgspec.ValidationError) as error:
            raise OutsideError(f"the token server of {self._host} gave no token") from error
        token = answer.token or answer.access_token
        # A token with control characters could inject headers into our requests.
        if not token or not token.isprintable() or not token.isascii():
            raise OutsideError(f"the token server of {self._host} gave no token")
        return token, answer.expires_in or _DEFAULT_TOKEN_SECONDS


def _describe_scope(scope: str) -> str:
    """Return what ``repository:NAME:ACTIONS`` asks for, in words for an error."""
    _, _, name = scope.partition(" ")[0].partition(":")
    repository, _, actions = name.rpartition(":")
    if not repository:
        return "its login"
    return f"repository {repository} (to {actions.replace(',', ' and ')})"


def _query_pairs(form: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return query parameters with one per scope (token.md, "Requesting a Token")."""
    pairs = [(name, value) for name, value in form.items() if name != "scope"]
    return pairs + [("scope", scope) for scope in form.get("scope", "").split()]
