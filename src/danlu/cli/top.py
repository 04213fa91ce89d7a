"""``danlu top``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from danlu.cli.environment_selection import select_environment
from danlu.cli.groups import command as declare_command
from danlu.cli.options import environment_argument, format_option, verbosity_options
from danlu.cli.output import print_json, print_table
from danlu.cli.session import current_session
from danlu.engine.environment_control import not_running_error
from danlu.engine.gpu.usage import GpuUsage
from danlu.environments.processes import (
    ProcessRow,
    add_gpu_usage,
    measure_processes,
)
from danlu.util.human import format_size

_MAX_COMMAND = 100


@declare_command("top")
@environment_argument
@format_option()
@verbosity_options
def command(name: str, form: str) -> None:
    """Show the processes of an environment.

    With the cores and the memory that they use, and how busy its GPUs are.
    """
    run = current_session()
    environment = select_environment(run, name)
    if not environment.is_running():
        raise not_running_error(environment.name)
    rows, gpus = add_gpu_usage(environment, measure_processes(environment))
    if form == "json":
        print_json([_row_to_json(row, gpus) for row in rows], run.terminal)
        return
    head = ["PID", "CPU", "MEMORY", *(["GPU MEMORY"] if gpus else []), "COMMAND"]
    numbers = tuple(range(len(head) - 1))
    print_table(head, [_describe_row(row, gpus) for row in rows], run.terminal, right=numbers)
    if gpus:
        run.terminal.write_stdout("")
        cells = [
            [
                str(gpu.index),
                "-" if gpu.utilization is None else f"{gpu.utilization:.0%}",
                format_size(gpu.memory),
                format_size(gpu.total),
                gpu.model,
            ]
            for gpu in gpus
        ]
        head = ["GPU", "USE", "MEMORY", "TOTAL", "MODEL"]
        print_table(head, cells, run.terminal, right=(0, 1, 2, 3))


def _describe_row(row: ProcessRow, gpus: Sequence[GpuUsage]) -> list[str]:
    on_gpus = format_size(sum(row.gpu_memory.values())) if row.gpu_memory else "-"
    return [
        str(row.pid),
        f"{row.cpu:.2f}",
        format_size(row.memory),
        *([on_gpus] if gpus else []),
        row.command[:_MAX_COMMAND],
    ]


def _row_to_json(row: ProcessRow, gpus: Sequence[GpuUsage]) -> dict[str, Any]:
    return {
        **{key: getattr(row, key) for key in ("pid", "cpu", "memory", "command")},
        "gpus": [
            {
                "index": gpu.index,
                "memory": row.gpu_memory[gpu.index],
                "utilization": gpu.utilization,
            }
            for gpu in gpus
            if gpu.index in row.gpu_memory
        ],
    }
