"""``danlu add``."""

from __future__ import annotations

import click

from danlu.cli.groups import command as declare_command
from danlu.cli.options import (
    file_option,
    package_kind_option,
    progress_option,
    verbosity_options,
)
from danlu.cli.package_command import run_package_command


@declare_command("add")
@click.argument("packages", nargs=-1, required=True, metavar="PACKAGE…")
@package_kind_option
@file_option
@progress_option
@verbosity_options
def command(packages: tuple[str, ...], kind: str | None, file: str | None, progress: str) -> None:
    """Add packages to the build file and the lock.

    PACKAGE is a name, or a requirement such as "numpy>=2", which replaces that for the same
    package. If the build file reads a requirements file or a pyproject.toml, that is changed.
    """
    run_package_command(kind, added=packages, file=file, progress=progress)
