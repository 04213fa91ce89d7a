"""``danlu completion``."""

from __future__ import annotations

import click

from danlu.cli.options import verbosity_options
from danlu.cli.session import session

__all__ = ["command"]


_HELP = """Print the completion script of a shell.

\b
bash:  danlu completion bash > ~/.local/share/bash-completion/completions/danlu
zsh:   danlu completion zsh > DIRECTORY_OF_FPATH/_danlu
fish:  danlu completion fish > ~/.config/fish/completions/danlu.fish
"""


@click.command(name="completion", short_help="Print the completion script of a shell.", help=_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@verbosity_options
def command(shell: str) -> None:
    """Print the script."""
    from click.shell_completion import get_completion_class

    from danlu.cli.app import root

    chosen = get_completion_class(shell)
    assert chosen is not None
    script = chosen(root, {}, "danlu", "_DANLU_COMPLETE").source()
    session().terminal.data(script.rstrip("\n"))
