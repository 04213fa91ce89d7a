"""``danlu completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from danlu.cli.app import root
from danlu.cli.groups import command as declare_command
from danlu.cli.options import verbosity_options
from danlu.cli.session import current_session

_HELP = """Generate a shell completion script.

\b
bash:  mkdir -p ~/.local/share/bash-completion/completions
       danlu completion bash > ~/.local/share/bash-completion/completions/danlu
zsh:   danlu completion zsh > DIRECTORY_OF_FPATH/_danlu
fish:  mkdir -p ~/.config/fish/completions
       danlu completion fish > ~/.config/fish/completions/danlu.fish
"""


@declare_command("completion", help=_HELP)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@verbosity_options
def command(shell: str) -> None:
    """Print the script."""
    completion = get_completion_class(shell)
    assert completion is not None
    script = completion(root, {}, "danlu", "_DANLU_COMPLETE").source()
    current_session().terminal.write_stdout(script.rstrip("\n"))
