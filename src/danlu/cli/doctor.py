"""``danlu doctor``."""

from __future__ import annotations

import msgspec

from danlu.cli.groups import command as declare_command
from danlu.cli.options import format_option, verbosity_options
from danlu.cli.output import print_json
from danlu.cli.session import current_session
from danlu.commands.doctor import run_checks
from danlu.util.sanitize import strip_control_sequences

_EXIT_FAILED_CHECKS = 4


@declare_command("doctor")
@format_option()
@verbosity_options
def command(form: str) -> int:
    """Check that this machine can run danlu.

    Changes nothing and uses no network. Exits with 4 if a check fails.
    """
    run = current_session()
    terminal = run.terminal
    checks = run_checks(run.paths)
    failed = [check for check in checks if not check.ok]
    if form == "json":
        print_json([msgspec.structs.asdict(check) for check in checks], terminal)
        return _EXIT_FAILED_CHECKS if failed else 0
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = ("ok  ", "green") if check.ok else ("FAIL", "red")
        name, detail = (
            strip_control_sequences(check.name).ljust(width),
            strip_control_sequences(check.detail),
        )
        terminal.write_stdout(f"{terminal.style_stdout(*mark)}  {name}  {detail}".rstrip())
        for line in check.fix.splitlines() if not check.ok else ():
            terminal.write_stdout(f"{' ' * (width + 8)}{strip_control_sequences(line)}")
    if failed:
        terminal.info(f"{len(failed)} of {len(checks)} checks failed.")
    else:
        terminal.info("All checks passed.")
    return _EXIT_FAILED_CHECKS if failed else 0
