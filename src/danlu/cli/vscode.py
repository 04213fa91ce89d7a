"""``danlu vscode``: servers of VS Code for environments without internet access."""

from __future__ import annotations

from pathlib import Path

import click

from danlu.cli.groups import group
from danlu.cli.options import format_option, on_option, verbosity_options
from danlu.cli.output import TableCell, print_json, print_table
from danlu.cli.session import current_session
from danlu.engine.vscode_servers import list_servers
from danlu.environments.vscode import add_archives, remove_server

_SHORT_COMMIT = 12

command = group(
    "vscode",
    help="""Provide VS Code's server without internet access.

Environments that are started have the servers that were added where Remote-SSH and Open Remote -
SSH look for them, so that editors do not download them.""",
)


@command.subcommand("add")
@click.argument(
    "archives",
    metavar="ARCHIVE...",
    nargs=-1,
    required=True,
    type=click.Path(path_type=Path),
)
@click.option(
    "--commit", default="", metavar="COMMIT", help="The commit of an archive of the command line."
)
@on_option
@verbosity_options
def add(archives: tuple[Path, ...], commit: str) -> None:
    """Add servers from archives.

    An archive is vscode-server-linux-x64.tar.gz, vscodium-reh-linux-x64-VERSION.tar.gz, or
    vscode_cli_alpine_x64_cli.tar.gz, the command line of a server. Their commit must be that of
    the editor (Help > About).
    """
    run = current_session()
    for server in add_archives(archives, run.paths, commit=commit):
        text = f"{server.name} {server.version}".strip()
        run.terminal.info(
            f"added {text}, commit {server.commit}; environments have it from their next start"
        )


@command.subcommand("ls")
@format_option()
@on_option
@verbosity_options
def list_all(form: str) -> None:
    """List the servers that were added."""
    run = current_session()
    servers = list_servers(run.paths.vscode_servers)
    if form == "json":
        rows = [
            {
                "commit": server.commit,
                "name": server.name,
                "version": server.version,
                "quality": server.quality,
                "architecture": server.architecture,
                "cli": server.cli,
            }
            for server in servers
        ]
        print_json(rows, run.terminal)
        return
    if not servers:
        run.terminal.info("no servers; `danlu vscode add` adds one")
        return
    cells: list[list[str | TableCell]] = [
        [
            server.commit[:_SHORT_COMMIT],
            server.name,
            server.version,
            server.architecture,
            server.cli or "no",
        ]
        for server in servers
    ]
    print_table(["COMMIT", "EDITOR", "VERSION", "ARCHITECTURE", "CLI"], cells, run.terminal)


@command.subcommand("rm")
@click.argument("commit")
@on_option
@verbosity_options
def remove(commit: str) -> None:
    """Remove a server; running environments lose it as well."""
    run = current_session()
    server = remove_server(commit, run.paths)
    run.terminal.info(f"removed {server.name} {server.version}, commit {server.commit}")
