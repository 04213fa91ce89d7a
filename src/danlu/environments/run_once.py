"""Run one program in an engine that only has environments: in one that ends with the program."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from danlu.engine.environment_control import encode_exec, terminal_request
from danlu.engine.foreground_exec import exec_in_foreground
from danlu.engine.settings import Settings
from danlu.engine.types import ExecRequest
from danlu.environment.runtime_settings import RuntimeSettings
from danlu.environments.command_options import CommandOptions, report_skipped_settings
from danlu.environments.manage import default_name, take_down
from danlu.environments.named_commands import resolve_command
from danlu.environments.spec import UpOptions
from danlu.environments.up import start_environment
from danlu.graph.progress import Message, Progress
from danlu.project.project import Project

_MAX_BASE_NAME = 40


def run_once(
    target: Project | Path,
    args: tuple[str, ...],
    options: CommandOptions,
    *,
    settings: Settings,
    progress: Progress,
) -> int:
    """Run ``args`` in a new environment of ``target``, remove it, and return the exit code.

    See :func:`danlu.environments.run.run_command`. If this process is killed, `danlu ps` lists the
    environment.
    """
    found = RuntimeSettings()

    def keep(runtime: RuntimeSettings) -> RuntimeSettings:
        nonlocal found
        found = runtime
        report_skipped_settings(runtime, progress)
        init = () if options.skip_init else runtime.init
        return msgspec.structs.replace(runtime, daemons=(), ports=(), jupyter=None, init=init)

    name = f"{default_name(target)[:_MAX_BASE_NAME].rstrip('-._')}-run-{os.urandom(4).hex()}"
    try:
        result = start_environment(
            target,
            settings=settings,
            options=UpOptions(
                name=name,
                volumes=options.volumes,
                environment=options.environment,
                gpus=options.gpus,
                user=options.user,
                shm_size=options.shm_size,
                allow_mounts=options.allow_mounts,
                offline=options.offline,
                frozen=options.frozen,
            ),
            progress=progress,
            image=options.image,
            keep=keep,
        )
        for note in result.notes:
            progress(Message(f"note: {note}", 0.0))
        words = args if options.is_program else resolve_command(args, found)
        request = terminal_request(words) if options.terminal else ExecRequest(words)
        directory = result.environment.directory
        return exec_in_foreground(directory, encode_exec(request), terminal=options.terminal)
    finally:
        if (settings.paths.environments / name).exists():
            take_down(name, settings)
