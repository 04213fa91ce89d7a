"""``danlu version``."""

from __future__ import annotations

from danlu.cli.groups import command as declare_command
from danlu.cli.options import format_option, verbosity_options
from danlu.cli.output import print_json
from danlu.cli.session import current_session
from danlu.diagnosis.version import list_versions


@declare_command("version")
@format_option()
@verbosity_options
def command(form: str) -> None:
    """Show the versions of danlu and its dependencies."""
    terminal = current_session().terminal
    versions = list_versions()
    if form == "json":
        print_json(versions, terminal)
        return
    width = max(map(len, versions))
    for name, version in versions.items():
        terminal.write_stdout(f"{name.ljust(width)}  {version or '-'}")
