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
from danlu.lang.arg_types import TEXTS
from danlu.lang.build_function import BoundCall, BuildFunction, EnvironmentBuilder, Parameter

_PROGRAM = "/opt/danlu/sagemaker.py"
# The program is read, not imported: it starts processes, which the language must not.
_SOURCE = Path(replica_runtime.__path__[0], "sagemaker.py")
_COMMAND_VARIABLE = "DANLU_TRAIN_COMMAND"


class SageMakerEntrypoint(Declaration, frozen=True):
    """``config.sagemaker(command)``: :mod:`danlu.replica_runtime.sagemaker` is the entrypoint.

    SageMaker replaces the image's command by ``train``, so the entrypoint has it as a variable.
    """

    needs_python: ClassVar[bool] = True

    command: tuple[str, ...] = ()

    def config_files(self) -> tuple[FileEntry, ...]:
        return (FileEntry(_PROGRAM, content=_SOURCE.read_text(encoding="utf-8")),)

    def configure(self, config: ImageConfig) -> ImageConfig:
        # Isolated from PYTHONPATH, which is the program's.
        config = replace(config, entrypoint=("python3", "-I", _PROGRAM))
        if not self.command:
            return config
        variable = (_COMMAND_VARIABLE, json.dumps(self.command, ensure_ascii=False))
        environment = tuple(sorted((*config.environment, variable)))
        return replace(config, environment=environment, command=self.command)


def _declare_sagemaker(env: EnvironmentBuilder, call: BoundCall) -> None:
    # An image has one entrypoint.
    env.declare_once("config.entrypoint", SageMakerEntrypoint(call["command"], span=call.span))


FUNCTIONS = (
    BuildFunction(
        "config.sagemaker",
        "Let the image run as a SageMaker training job, too: its entrypoint gives the program the "
        "variables and arguments of SageMaker's toolkit and those of torchrun, and says why it "
        "failed. It executes commands other than `train` and `serve` as they are.",
        (
            Parameter(
                "command",
                TEXTS,
                "the image's command, to which hyperparameters are added; without it, SageMaker's "
                "`SAGEMAKER_PROGRAM` names a file in `/opt/ml/code`",
                (),
            ),
        ),
        declare=_declare_sagemaker,
        unique=True,
        example='config.sagemaker(["python", "/workspace/train.py"])',
    ),
)
