"""``config.sagemaker()``: the image also runs as a SageMaker training job."""

from __future__ import annotations

import json
from pathlib import Path
from typing import ClassVar

from msgspec.structs import replace

from danlu import replica_runtime
from danlu.environment.types import Declaration
from danlu.graph.image_config import ImageConfig
from danlu.graph.ops import FileEntry
from danlu.lang.arg_types import TEXT, TEXTS, CallError
from danlu.lang.build_function import BoundCall, BuildFunction, EnvironmentBuilder, Parameter

_DIRECTORY = "/opt/danlu"
# The programs are read, not imported: they start processes, which the language must not.
_SOURCE = Path(replica_runtime.__path__[0])
_FILES = ("sagemaker.py", "mpi_hosts.py", "node_templates.json")
_COMMAND_VARIABLE = "DANLU_TRAIN_COMMAND"
_FRAMEWORK_VARIABLE = "DANLU_TRAIN_FRAMEWORK"


class SageMakerEntrypoint(Declaration, frozen=True):
    """``config.sagemaker(command)``: :mod:`danlu.replica_runtime.sagemaker` is the entrypoint.

    SageMaker replaces the image's command by ``train``, so the entrypoint has it as a variable.
    """

    needs_python: ClassVar[bool] = True

    command: tuple[str, ...] = ()
    framework: str = ""

    def config_files(self) -> tuple[FileEntry, ...]:
        return tuple(
            FileEntry(f"{_DIRECTORY}/{name}", content=(_SOURCE / name).read_text(encoding="utf-8"))
            for name in _FILES
        )

    def configure(self, config: ImageConfig) -> ImageConfig:
        # Isolated from PYTHONPATH, which is the program's.
        entrypoint = ("python3", "-I", f"{_DIRECTORY}/{_FILES[0]}")
        command = json.dumps(self.command, ensure_ascii=False) if self.command else ""
        variables = {_COMMAND_VARIABLE: command, _FRAMEWORK_VARIABLE: self.framework}
        added = ((name, value) for name, value in variables.items() if value)
        return replace(
            config,
            entrypoint=entrypoint,
            environment=tuple(sorted((*config.environment, *added))),
            command=self.command or config.command,
        )


def _declare_sagemaker(env: EnvironmentBuilder, call: BoundCall) -> None:
    known = json.loads((_SOURCE / _FILES[2]).read_text(encoding="utf-8"))
    if (framework := call["framework"]) and framework not in known:
        raise CallError(
            f"config.sagemaker(): unknown framework '{framework}'",
            argument="framework",
            hint=f"choose from {', '.join(known)}",
        )
    entrypoint = SageMakerEntrypoint(call["command"], framework, span=call.span)
    env.declare_once("config.sagemaker", entrypoint, setting="the entrypoint")


FUNCTIONS = (
    BuildFunction(
        "config.sagemaker",
        "Let the image run as a SageMaker training job, too: its entrypoint gives the program the "
        "variables and arguments of SageMaker's toolkit and those by which a framework's nodes "
        "find one another, and says why it failed. It executes commands other than `train` and "
        "`serve` as they are.",
        (
            Parameter(
                "command",
                TEXTS,
                "the image's command, to which hyperparameters are added; without it, SageMaker's "
                "`SAGEMAKER_PROGRAM` names a file in `/opt/ml/code`",
                (),
            ),
            Parameter(
                "framework",
                TEXT,
                "the framework whose variables the command gets, `pytorch` or another one; `mpi` "
                "runs the command with `mpirun`; without it, the variables of all of them but MPI",
                "",
            ),
        ),
        declare=_declare_sagemaker,
        unique=True,
        example='config.sagemaker(["python", "/workspace/train.py"])',
    ),
)
