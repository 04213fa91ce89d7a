"""``danlu doctor``."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

import click
import msgspec

from danlu.cli.groups import command as declare_command
from danlu.cli.options import format_option, on_option, verbosity_options
from danlu.cli.output import print_json
from danlu.cli.session import Session, current_session
from danlu.cli.terminal import Terminal
from danlu.diagnosis.doctor import DoctorCheck, run_checks
from danlu.diagnosis.doctor_fix import install_packages, plan_installation
from danlu.util.sanitize import strip_control_sequences

_EXIT_FAILED_CHECKS = 4


@declare_command("doctor")
@click.option("--fix", is_flag=True, help="Install missing packages with apt, after asking.")
@click.option(
    "--all", "everything", is_flag=True, help="With --fix, also install what is optional."
)
@click.option("-y", "--yes", is_flag=True, help="With --fix, install without asking.")
@format_option()
@on_option
@verbosity_options
def command(fix: bool, everything: bool, yes: bool, form: str) -> int:
    """Check that the context's machine can run danlu.

    Changes nothing without --fix. Connects to the mirrors, registries and the cluster that are
    configured, and sends them nothing. Exits with 4 if a required check fails.
    """
    if (everything or yes) and not fix:
        raise click.UsageError("--all and --yes need --fix")
    run = current_session()
    checks = run_checks(run.paths, run.context)
    if fix and _fix_checks(checks, run, everything=everything, yes=yes):
        checks = run_checks(run.paths, run.context)
    failed = [check for check in checks if not check.ok and not check.optional]
    if form == "json":
        print_json([msgspec.structs.asdict(check) for check in checks], run.terminal)
    else:
        _print_checks(checks, run.terminal)
    return _EXIT_FAILED_CHECKS if failed else 0


def _fix_checks(
    checks: Sequence[DoctorCheck], run: Session, *, everything: bool, yes: bool
) -> bool:
    """Install packages and return whether any were."""
    plan = plan_installation(checks, everything=everything)
    for check in plan.remaining:
        text = f"apt cannot fix {check.name}: {check.fix or check.detail}"
        run.terminal.info(strip_control_sequences(text))
    if not plan.command:
        run.terminal.info("nothing to install")
        return False
    run.terminal.info(f"will run: {shlex.join(plan.command)}")
    if not yes and not click.confirm("Run it?", err=True):
        return False
    install_packages(plan.command, sys.stderr.fileno())
    return True


def _print_checks(checks: Sequence[DoctorCheck], terminal: Terminal) -> None:
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = ("ok  ", "green") if check.ok else ("FAIL", "red")
        if not check.ok and check.optional:
            mark = ("--  ", "yellow")
        name = strip_control_sequences(check.name).ljust(width)
        detail = strip_control_sequences(check.detail)
        terminal.write_stdout(f"{terminal.style_stdout(*mark)}  {name}  {detail}".rstrip())
        for line in check.fix.splitlines() if not check.ok else ():
            terminal.write_stdout(f"{' ' * (width + 8)}{strip_control_sequences(line)}")
    failed = sum(not check.ok and not check.optional for check in checks)
    missing = sum(not check.ok and check.optional for check in checks)
    optional = f" {missing} optional (--) are missing." if missing else ""
    if failed:
        terminal.info(f"{failed} of {len(checks)} checks failed.{optional}")
    else:
        terminal.info(f"All checks passed.{optional}")
