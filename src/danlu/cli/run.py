"""``danlu run``."""

from __future__ import annotations

import click

from danlu.cli.groups import command as declare_command
from danlu.cli.options import (
    file_option,
    frozen_option,
    offline_option,
    on_option,
    progress_option,
    quiet_options,
    user_option,
    variable_option,
    volume_option,
)
from danlu.cli.program_command import ProgramCommand
from danlu.cli.session import current_session
from danlu.environments.command_options import CommandOptions
from danlu.environments.run import run_command


class _RunCommand(ProgramCommand):
    """Distinguishes ``danlu run NAME`` from ``danlu run -- NAME``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Note whether ``--`` was written, which is not among the parsed arguments."""
        written = list(args)
        rest = super().parse_args(ctx, args)
        count = len(written) - len(ctx.params.get("args") or ())
        ctx.params["is_program"] = count > 0 and written[count - 1] == "--"
        return rest


@declare_command("run", cls=_RunCommand, context_settings={"allow_interspersed_args": False})
@file_option
@click.option(
    "--image",
    default="",
    metavar="REF",
    help="Run in this local image; mounts the current directory.",
)
@volume_option
@variable_option
@click.option("--gpus", default="", metavar="N|all|none|IDS", help="GPUs of the program.")
@user_option
@on_option
@click.option(
    "--security-opt",
    "security",
    multiple=True,
    metavar="seccomp=PROFILE",
    help="seccomp profile: default, unconfined or a JSON file.",
)
@click.option(
    "--shm-size",
    default="",
    metavar="SIZE",
    help="Size of /dev/shm, such as 512MiB; config.shm_size by default.",
)
@click.option("--no-init", "skip_init", is_flag=True, help="Skip the commands of runtime.init.")
@click.option(
    "--allow-mounts",
    is_flag=True,
    help="Allow the mounts of included repositories.",
)
@frozen_option
@offline_option
@progress_option
@quiet_options
@click.argument("args", nargs=-1, required=True, type=click.UNPROCESSED, metavar="CMD...")
def command(
    file: str | None,
    args: tuple[str, ...],
    image: str,
    volumes: tuple[str, ...],
    environment: tuple[str, ...],
    gpus: str,
    user: str,
    security: tuple[str, ...],
    shm_size: str,
    skip_init: bool,
    allow_mounts: bool,
    is_program: bool,
    frozen: bool,
    offline: bool,
    progress: str,
) -> int:
    """Run a command in the environment, with the project mounted.

    CMD is a command that the build file names with runtime.command, else a program; after -- it is
    always a program. The environment is built first if needed. Mounts, shared memory and init
    commands of the build file are applied. Exits with the command's own code: 128+n if signal n
    killed it, 126 if it is not executable, 127 if it is not found. If danlu fails before the
    command starts, the code is 125.
    """
    run = current_session()
    if image and file:
        raise click.UsageError("--image cannot be combined with --file")
    target = run.directory if image else run.open_project(file)
    return run_command(
        target,
        args,
        CommandOptions(
            image=image,
            volumes=volumes,
            environment=environment,
            gpus=gpus,
            user=user,
            security=security,
            terminal=run.terminal.can_attach,
            offline=offline,
            frozen=frozen,
            is_program=is_program,
            shm_size=shm_size,
            skip_init=skip_init,
            allow_mounts=allow_mounts,
        ),
        settings=run.settings,
        progress=run.start_progress(progress),
    )
