"""Log in to registries and out of them; the credentials are shared with Docker."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import partial

from danlu.engine.settings import Settings
from danlu.errors import OutsideError, UsageError
from danlu.oci.reference import DEFAULT_REGISTRY, parse_registry
from danlu.oci.registry import Registry, RegistryCredentials, find_docker_credentials
from danlu.oci.registry.credential_store import CredentialStore
from danlu.oci.registry.credentials import CredentialHelperError
from danlu.oci.registry.errors import RegistryAccessDenied
from danlu.sources.image import make_endpoint

#: Names of Docker Hub: of its website, its index, and its API.
_HUB_NAMES = ("index.docker.io", "registry-1.docker.io", "hub.docker.com")


@dataclass(frozen=True)
class LoginResult:
    """Where the credentials were stored, and whether unencrypted.

    ``is_verified`` is false if the registry asked for no credentials.
    """

    place: str
    is_plain: bool
    is_verified: bool


def parse_login_registry(text: str) -> str:
    """Return the host and port of a registry, given as such or as URL; Docker Hub's if empty.

    Raises :class:`UsageError` if it is invalid.
    """
    bare = text.strip().removeprefix("https://").removeprefix("http://")
    host, _, path = bare.partition("/")
    if path.strip("/") not in ("", "v1", "v2"):
        raise UsageError(
            f"a login is for a whole registry, not for {bare}", hint=f"danlu login {host}"
        )
    return DEFAULT_REGISTRY if not host or host in _HUB_NAMES else parse_registry(host)


async def login(
    host: str, credentials: RegistryCredentials, store: CredentialStore, settings: Settings
) -> LoginResult:
    """Verify credentials with the registry ``host``, then store them.

    Raises :class:`OutsideError` if the registry rejects them or cannot be reached, or if the
    credential helper fails: nothing is stored then.
    """
    if ":" in credentials.username:
        # The colon separates the two in what is sent (RFC 7617, section 2).
        raise UsageError(f"invalid user name {credentials.username!r}: it has a colon")

    async def return_credentials(
        _: str, rejected: Collection[RegistryCredentials]
    ) -> RegistryCredentials | None:
        return None if credentials in rejected else credentials

    try:
        async with Registry(
            make_endpoint(host, settings.config), lookup=return_credentials
        ) as registry:
            is_verified = await registry.check_login()
    except RegistryAccessDenied as error:
        raise OutsideError(
            f"{host} rejected the login of {credentials.username}{error.reason}",
            hint="check the user name and the password; some registries need an access token "
            "instead of the password",
        ) from error
    try:
        await store.store(host, credentials)
    except CredentialHelperError as error:
        error.hint = (
            f"repair the helper, or remove it from credsStore or credHelpers in {store.path}"
        )
        raise
    return LoginResult(store.describe(host), store.is_plain(host), is_verified)


async def check_cloud_login(host: str, settings: Settings) -> None:
    """Verify the login that the tools of a cloud have for its registry ``host``.

    Raises :class:`OutsideError` if the registry rejects it or cannot be reached, or if there is
    none. Nothing is stored: such logins expire within hours, and are asked for when needed.
    """
    lookup = partial(find_docker_credentials, push=True)
    async with Registry(make_endpoint(host, settings.config), lookup=lookup) as registry:
        await registry.check_login()


async def has_other_login(host: str) -> bool:
    """Return whether credentials for ``host`` are found elsewhere: those of Podman."""
    try:
        return await find_docker_credentials(host, ask_cloud=False) is not None
    except CredentialHelperError:
        return False
