"""``danlu login``."""

from __future__ import annotations

import sys

import anyio
import click

from danlu.cli.groups import command as declare_command
from danlu.cli.options import verbosity_options
from danlu.cli.session import current_session
from danlu.errors import UsageError
from danlu.image.login import check_cloud_login, login, parse_login_registry
from danlu.oci.registry import RegistryCredentials
from danlu.oci.registry.clouds import find_cloud
from danlu.oci.registry.credential_store import CredentialStore

_STDIN_HINT = "danlu login -u USER --password-stdin < FILE"
#: Longer input than this is not a password but a file given by mistake.
_MAX_PASSWORD_BYTES = 1 << 16


@declare_command("login")
@click.argument("registry", default="", metavar="[REGISTRY]")
@click.option("-u", "--username", default="", metavar="USER", help="User name; asked for if empty.")
@click.option("--password-stdin", is_flag=True, help="Read the password from stdin.")
@verbosity_options
def command(registry: str, username: str, password_stdin: bool) -> None:
    """Log in to a registry.

    REGISTRY is a host, or host:port; the default is Docker Hub. The login is verified, then stored
    as `docker login` does, so that Docker and skopeo use it as well. The login for a registry of
    AWS, Google Cloud or Azure comes from its tools; without --username it is only verified.
    """
    run = current_session()
    host = parse_login_registry(registry)
    if find_cloud(host) and not (username or password_stdin):
        anyio.run(check_cloud_login, host, run.settings)
        run.terminal.info(f"{host} accepts the login of its cloud; nothing needs to be stored")
        return
    store = CredentialStore()
    credentials = _read_credentials(host, username, password_stdin=password_stdin)
    result = anyio.run(login, host, credentials, store, run.settings)
    if not result.is_verified:
        run.terminal.info(f"note: {host} asks for no login, so that it could not be verified")
    place = f"{result.place}, unencrypted" if result.is_plain else result.place
    run.terminal.info(f"logged in to {host} as {credentials.username} (stored in {place})")


def _read_credentials(host: str, username: str, *, password_stdin: bool) -> RegistryCredentials:
    if password_stdin:
        if not username:
            raise click.UsageError("--password-stdin needs --username")
        password = _decode_password(sys.stdin.buffer.read(_MAX_PASSWORD_BYTES + 1))
    elif not sys.stdin.isatty():
        raise UsageError("cannot ask for the password: stdin is not a terminal", hint=_STDIN_HINT)
    else:
        username = username or click.prompt(f"user name for {host}", err=True)
        password = click.prompt(f"password of {username}", err=True, hide_input=True)
    if not password:
        raise UsageError("the password is empty", hint=_STDIN_HINT)
    return RegistryCredentials(username, password)


def _decode_password(data: bytes) -> str:
    """Return the password without the newline at its end."""
    try:
        password = data.decode().removesuffix("\n").removesuffix("\r")
    except UnicodeDecodeError as error:
        raise UsageError("the password on stdin is not UTF-8") from error
    if len(data) > _MAX_PASSWORD_BYTES or not password.isprintable():
        raise UsageError("stdin is not a password: it is too long or has several lines")
    return password
