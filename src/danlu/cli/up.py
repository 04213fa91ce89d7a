"""``danlu up``."""

from __future__ import annotations

import sys
import time
from typing import get_args

import click

from danlu.cli.command_stamp import write_stamp
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
from danlu.cli.session import current_session
from danlu.engine.environment_control import encode_exec, terminal_request
from danlu.engine.foreground_exec import exec_in_foreground
from danlu.environments.jupyter import format_jupyter_url, wait_for_jupyter
from danlu.environments.spec import UpOptions
from danlu.environments.up import start_environment
from danlu.util.config import NetworkName


@declare_command("up")
@file_option
@click.option("-n", "--name", default="", metavar="NAME", help="Name [default: the project's].")
@click.option(
    "--image", default="", metavar="REF", help="Start this local image; mounts this directory."
)
@click.option("-d", "--detach", is_flag=True, help="Do not open a shell.")
@click.option("--recreate", is_flag=True, help="Start over from the image; discards changes.")
@volume_option
@variable_option
@click.option(
    "-p",
    "--port",
    "ports",
    multiple=True,
    metavar="[HOST:]PORT",
    help="Publish a port of the environment on this machine. Repeatable.",
)
@click.option("--cpus", default="", metavar="N", help="Limit the cores.")
@click.option("--memory", default="", metavar="SIZE", help="Limit the memory, such as 16G.")
@click.option("--gpus", default="", metavar="N|all|none|IDS", help="GPUs of the environment.")
@click.option("--shm-size", default="", metavar="SIZE", help="Size of /dev/shm, such as 2G.")
@user_option
@on_option
@click.option(
    "--network",
    type=click.Choice(get_args(NetworkName)),
    help="The machine's network, or a private one with forwarded ports only.",
)
@click.option(
    "--ssh-port",
    default="",
    metavar="[ADDRESS:]PORT",
    help="Serve SSH at this TCP port, for clients that cannot use NAME.danlu.",
)
@click.option(
    "--authorized-keys",
    default="",
    metavar="FILE",
    help="Public keys that may log in at --ssh-port.",
)
@click.option("--allow-mounts", is_flag=True, help="Allow the mounts of included repositories.")
@frozen_option
@offline_option
@progress_option
@quiet_options
def command(
    file: str | None,
    name: str,
    image: str,
    detach: bool,
    recreate: bool,
    volumes: tuple[str, ...],
    environment: tuple[str, ...],
    ports: tuple[str, ...],
    cpus: str,
    memory: str,
    gpus: str,
    shm_size: str,
    user: str,
    network: NetworkName | None,
    ssh_port: str,
    authorized_keys: str,
    allow_mounts: bool,
    frozen: bool,
    offline: bool,
    progress: str,
) -> int:
    """Start the project's environment and open a shell in it.

    The environment is built first if needed, and keeps running when the shell ends. If it runs
    already, only a shell is opened. Changes inside survive `danlu stop`, until `danlu down`.
    """
    run = current_session()
    started = time.time()
    if image and file:
        raise click.UsageError("--image cannot be combined with --file")
    options = UpOptions(
        name=name,
        volumes=volumes,
        environment=environment,
        ports=ports,
        cpus=cpus,
        memory=memory,
        gpus=gpus,
        shm_size=shm_size,
        allow_mounts=allow_mounts,
        user=user,
        engine=run.context.engine_name if run.on else "",
        network=network,
        ssh_port=ssh_port,
        authorized_keys=authorized_keys,
        recreate=recreate,
        offline=offline,
        frozen=frozen,
    )
    result = start_environment(
        run.directory if image else run.open_project(file),
        settings=run.settings,
        options=options,
        progress=run.start_progress(progress),
        image=image,
    )
    run.stop_progress()
    unready = wait_for_jupyter(result.environment)
    for note in (*result.notes, *([unready] if unready else [])):
        run.terminal.info(f"note: {note}")
    name = result.environment.name
    url = format_jupyter_url(result.environment.read_spec())
    before = f"JupyterLab: {url}" if url else ""
    if before:
        run.terminal.info(before)
    if detach or sys.stdin is None or not sys.stdin.isatty():
        state = "started" if result.started else "runs already"
        run.terminal.info(f"{name} {state}; `danlu exec -n {name} CMD` runs a program in it")
        return 0
    after = f"{name} keeps running: `danlu up` opens a shell, `danlu stop {name}` stops it"
    if result.depends_on and not (run.verbosity or run.terminal.muted):
        write_stamp(
            run.arguments,
            depends_on=result.depends_on,
            epoch=result.epoch,
            started=started,
            answer={
                "environment": str(result.environment.directory),
                "before": "" if run.quiet or not before else f"{before}\n",
                "after": "" if run.quiet else f"{after}\n",
                **({"starts": "alone"} if result.starts_alone else {}),
            },
        )
    request = encode_exec(terminal_request(()))
    code = exec_in_foreground(result.environment.directory, request, terminal=True)
    if result.environment.is_running():
        run.terminal.info(after)
    return code
