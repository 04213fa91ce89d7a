"""``danlu kernel``: register danlu's kernel, and kernels of environments, with Jupyter."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from danlu.cli.environment_selection import select_environment
from danlu.cli.error_rendering import print_warning
from danlu.cli.groups import group
from danlu.cli.options import EnvironmentNameParam, format_option, verbosity_options
from danlu.cli.output import print_json, print_table
from danlu.cli.program_command import ProgramCommand
from danlu.cli.session import current_session
from danlu.notebook.environment_kernel import check_kernel_support, run_environment_kernel
from danlu.notebook.kernelspec import (
    DEFAULT_NAME,
    check_requirements,
    environment_base,
    install_kernel,
    list_kernels,
    search_bases,
    uninstall_kernel,
    user_base,
)

F = TypeVar("F", bound=Callable[..., Any])

#: What finds Jupyter's directories.
_JUPYTER = ("jupyter_core",)

command = group(
    "kernel",
    help="""Manage danlu's kernels for Jupyter.

    The kernel `danlu` is IPython's kernel, run by this Python, and can run cells as training jobs.
    A running environment can be a kernel as well.""",
)


def _location_options(verb: str) -> Callable[[F], F]:
    """Add ``--user``, ``--prefix`` and ``--sys-prefix``, as `jupyter kernelspec install` has."""

    def add(function: F) -> F:
        for name, where in (
            ("--sys-prefix", "this Python's environment"),
            ("--user", "the user's Jupyter directory"),
        ):
            function = click.option(name, is_flag=True, help=f"{verb} {where}.")(function)
        return click.option(
            "--prefix",
            type=click.Path(path_type=Path),
            metavar="PATH",
            help=f"{verb} PATH/share/jupyter.",
        )(function)

    return add


def _select_base(*, user: bool, prefix: Path | None, sys_prefix: bool) -> Path | None:
    """Return the selected location, or None if no option was given."""
    if user + sys_prefix + (prefix is not None) > 1:
        raise click.UsageError("only one of --user, --prefix and --sys-prefix can be used")
    if sys_prefix:
        return environment_base(Path(sys.prefix))
    if prefix is not None:
        return environment_base(prefix)
    return user_base() if user else None


@command.subcommand("install")
@_location_options("Install into")
@click.option(
    "--env",
    "environment",
    default="",
    type=EnvironmentNameParam(),
    metavar="NAME",
    help="Run the kernel in this environment.",
)
@click.option(
    "--name",
    default="",
    metavar="NAME",
    help="Kernel name that notebooks store [default: danlu, or the environment's].",
)
@click.option("--display-name", default="", metavar="TEXT", help="Kernel name that Jupyter shows.")
@click.option("--replace", is_flag=True, help="Replace another kernel of that name.")
@verbosity_options
def install(environment: str, name: str, display_name: str, replace: bool, **location: Any) -> None:
    """Register the kernel with Jupyter.

    The kernel runs this Python. Its directory is written to stdout. To open notebooks made with
    another kernel, install danlu's under that kernel's --name.

    With --env, the kernel is the Python of an environment of this machine, which must have
    ipykernel and run whenever the kernel is started.
    """
    run = current_session()
    if environment:
        check_requirements(_JUPYTER)
        check_kernel_support(select_environment(run, environment))
    else:
        check_requirements()
    base = _select_base(**location) or user_base()
    directory = install_kernel(
        base,
        name or environment or DEFAULT_NAME,
        display_name=display_name,
        replace=replace,
        environment=environment,
    )
    run.terminal.write_stdout(str(directory))
    if location["user"] or location["prefix"] is None or base in search_bases():
        run.terminal.info(f"installed kernel {directory.name}")
    else:
        print_warning(
            f"this Python's Jupyter does not search {base}; set JUPYTER_PATH={base} to add it",
            run.terminal,
        )


@command.subcommand("run", cls=ProgramCommand)
@click.option(
    "--env",
    "environment",
    required=True,
    type=EnvironmentNameParam(),
    metavar="NAME",
    help="The environment; it must be running.",
)
@verbosity_options
@click.argument("connection_file", type=click.Path(path_type=Path))
def run_kernel(environment: str, connection_file: Path) -> int:
    """Run a kernel in an environment; Jupyter calls this.

    The kernel ends with this process.
    """
    run = current_session()
    return run_environment_kernel(select_environment(run, environment), connection_file)


@command.subcommand("ls")
@format_option()
@verbosity_options
def ls(form: str) -> None:
    """List danlu's kernels that Jupyter finds.

    With -q only their names. A kernel whose Python is missing cannot start.
    """
    check_requirements(_JUPYTER)
    run = current_session()
    kernels = list_kernels(search_bases())
    if form == "json":
        rows = [
            {
                "name": kernel.name,
                "display_name": kernel.display_name,
                "python": kernel.python,
                "environment": kernel.environment,
                "directory": str(kernel.directory),
                "ready": kernel.ready,
            }
            for kernel in kernels
        ]
        print_json(rows, run.terminal)
    elif run.quiet:
        for kernel in kernels:
            run.terminal.write_stdout(kernel.name)
    else:
        table = [
            (
                kernel.name,
                kernel.display_name,
                kernel.python + ("" if kernel.ready else " (missing)"),
                kernel.environment,
                str(kernel.directory),
            )
            for kernel in kernels
        ]
        columns = ("NAME", "DISPLAY NAME", "PYTHON", "ENVIRONMENT", "DIRECTORY")
        print_table(columns, table, run.terminal)


@command.subcommand("uninstall")
@click.argument("name", default="danlu")
@_location_options("Remove only from")
@verbosity_options
def uninstall(name: str, **location: Any) -> None:
    """Remove the kernel from Jupyter.

    Without a location, removes the first kernel of that name that Jupyter finds. Kernels of other
    programs are never removed.
    """
    check_requirements(_JUPYTER)
    base = _select_base(**location)
    removed = uninstall_kernel(search_bases() if base is None else (base,), name)
    current_session().terminal.info(f"removed {removed}")
