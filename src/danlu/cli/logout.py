"""``danlu logout``."""

from __future__ import annotations

import anyio
import click

from danlu.cli.groups import command as declare_command
from danlu.cli.options import verbosity_options
from danlu.cli.session import current_session
from danlu.image.login import has_other_login, parse_login_registry
from danlu.oci.registry.credential_store import CredentialStore


@declare_command("logout")
@click.argument("registry", default="", metavar="[REGISTRY]")
@verbosity_options
def command(registry: str) -> None:
    """Log out of a registry.

    REGISTRY is a host, or host:port; the default is Docker Hub. The login of `docker login` is
    removed as well.
    """
    terminal = current_session().terminal
    host = parse_login_registry(registry)
    is_erased = anyio.run(CredentialStore().erase, host)
    terminal.info(f"logged out of {host}" if is_erased else f"not logged in to {host}")
    if anyio.run(has_other_login, host):
        terminal.info(f"note: there is another login, removed by `podman logout {host}`")
