"""Choose the instance type of a training job by what its replicas request.

The sizes are those of ``ec2:DescribeInstanceTypes``; a test compares them with a recording of it.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from danlu.errors import UsageError
from danlu.graph.processor_level import LEVEL_ARCHITECTURE, choose_level


class InstanceType(msgspec.Struct, frozen=True):
    """An instance type of SageMaker: cores, memory in GiB, and how many GPUs of which kind."""

    name: str
    cpus: int
    memory: int
    gpus: int = 0
    gpu: str = ""

    def __str__(self) -> str:
        gpus = f", {self.gpus} × {self.gpu}" if self.gpus else ""
        return f"{self.name} ({self.cpus} CPUs, {self.memory} GiB{gpus})"


class ReplicaRequest(msgspec.Struct, frozen=True):
    """What a replica requests: cores, bytes of memory, GPUs; 0 if it does not say."""

    cpus: float = 0
    memory: float = 0
    gpus: int = 0

    def fits(self, instance: InstanceType) -> bool:
        """Return whether an instance has at least this; GPUs are not given to jobs without."""
        return (
            self.cpus <= instance.cpus
            and self.memory <= instance.memory << 30
            and self.gpus <= instance.gpus
        )

    def __str__(self) -> str:
        parts = (
            f"{self.cpus:g} CPUs" if self.cpus else "",
            f"{self.memory / (1 << 30):g} GiB" if self.memory else "",
            f"{self.gpus} GPUs" if self.gpus else "",
        )
        return ", ".join(filter(None, parts))


#: The level of each family's processors, all of them x86-64: AVX-512 in Intel's, AVX2 in AMD's of
#: the second and third generation (Amazon EC2 instance types, "Specifications").
_PROCESSOR_LEVELS = {
    **dict.fromkeys(("m5", "c5", "r5", "m7i", "r7i", "g4dn", "p4d", "p4de", "p5en"), "x86-64-v4"),
    **dict.fromkeys(("g5", "g6", "g6e", "p5", "p5e"), "x86-64-v3"),
}

DEFAULT_INSTANCE_TYPE = "ml.m5.large"

#: The kinds of GPUs are in the order of their prices.
INSTANCE_TYPES: tuple[InstanceType, ...] = (
    InstanceType("ml.m5.large", 2, 8),
    InstanceType("ml.m5.xlarge", 4, 16),
    InstanceType("ml.m5.2xlarge", 8, 32),
    InstanceType("ml.m5.4xlarge", 16, 64),
    InstanceType("ml.m5.12xlarge", 48, 192),
    InstanceType("ml.m5.24xlarge", 96, 384),
    InstanceType("ml.c5.xlarge", 4, 8),
    InstanceType("ml.c5.2xlarge", 8, 16),
    InstanceType("ml.c5.4xlarge", 16, 32),
    InstanceType("ml.c5.9xlarge", 36, 72),
    InstanceType("ml.c5.18xlarge", 72, 144),
    InstanceType("ml.r5.xlarge", 4, 32),
    InstanceType("ml.r5.2xlarge", 8, 64),
    InstanceType("ml.r5.4xlarge", 16, 128),
    InstanceType("ml.r5.12xlarge", 48, 384),
    InstanceType("ml.r5.24xlarge", 96, 768),
    InstanceType("ml.m7i.48xlarge", 192, 768),
    InstanceType("ml.r7i.48xlarge", 192, 1536),
    InstanceType("ml.g4dn.xlarge", 4, 16, 1, "T4"),
    InstanceType("ml.g4dn.2xlarge", 8, 32, 1, "T4"),
    InstanceType("ml.g4dn.12xlarge", 48, 192, 4, "T4"),
    InstanceType("ml.g5.xlarge", 4, 16, 1, "A10G"),
    InstanceType("ml.g5.2xlarge", 8, 32, 1, "A10G"),
    InstanceType("ml.g5.4xlarge", 16, 64, 1, "A10G"),
    InstanceType("ml.g5.8xlarge", 32, 128, 1, "A10G"),
    InstanceType("ml.g5.16xlarge", 64, 256, 1, "A10G"),
    InstanceType("ml.g5.12xlarge", 48, 192, 4, "A10G"),
    InstanceType("ml.g5.24xlarge", 96, 384, 4, "A10G"),
    InstanceType("ml.g5.48xlarge", 192, 768, 8, "A10G"),
    InstanceType("ml.g6.xlarge", 4, 16, 1, "L4"),
    InstanceType("ml.g6.12xlarge", 48, 192, 4, "L4"),
    InstanceType("ml.g6.48xlarge", 192, 768, 8, "L4"),
    InstanceType("ml.g6e.xlarge", 4, 32, 1, "L40S"),
    InstanceType("ml.g6e.12xlarge", 48, 384, 4, "L40S"),
    InstanceType("ml.g6e.48xlarge", 192, 1536, 8, "L40S"),
    InstanceType("ml.p4d.24xlarge", 96, 1152, 8, "A100"),
    InstanceType("ml.p4de.24xlarge", 96, 1152, 8, "A100"),
    InstanceType("ml.p5.4xlarge", 16, 256, 1, "H100"),
    InstanceType("ml.p5.48xlarge", 192, 2048, 8, "H100"),
    InstanceType("ml.p5e.48xlarge", 192, 2048, 8, "H200"),
    InstanceType("ml.p5en.48xlarge", 192, 2048, 8, "H200"),
)


def choose_instance_type(
    request: ReplicaRequest,
    preferred: str = "",
    *,
    table: Sequence[InstanceType] = INSTANCE_TYPES,
) -> tuple[str, str]:
    """Return the instance type for replicas with this request, and a sentence about the choice.

    ``preferred`` (the context's) is taken if the request fits, or if it is not in the table, and
    then nothing is said. Otherwise it is the smallest that fits: fewest GPUs, of the cheapest kind,
    then fewest cores, then least memory. Raises :class:`UsageError` if none does.
    """
    named = {instance.name: instance for instance in table}
    wanted = preferred or ("" if str(request) else DEFAULT_INSTANCE_TYPE)
    if wanted and (wanted not in named or request.fits(named[wanted])):
        return wanted, "" if preferred else f"instance type {named[wanted]}"
    fitting = [instance for instance in table if request.fits(instance)]
    if not fitting:
        raise UsageError(
            f"danlu knows no instance type with {request}",
            hint="request less, or name one: `danlu context create … --instance-type TYPE`",
        )
    kinds = list(dict.fromkeys(instance.gpu for instance in table))
    chosen = min(
        fitting,
        key=lambda each: (each.gpus, kinds.index(each.gpu), each.cpus, each.memory),
    )
    instead = f", because {named[preferred]} is too small" if preferred else ""
    return chosen.name, f"instance type {chosen} for {request}{instead}"


def check_processor(name: str, architecture: str, level: str) -> None:
    """Raise :class:`UsageError` if instances of a type cannot run the programs of an image.

    ``architecture`` and ``level`` are what the image needs, empty if that is not known. Types that
    are not in the table are not checked for the level.
    """
    if architecture not in ("", LEVEL_ARCHITECTURE):
        raise UsageError(
            f"the image is for linux/{architecture}, and the instances of SageMaker's training jobs"
            f" are linux/{LEVEL_ARCHITECTURE}",
            hint=f"build it with --platform linux/{LEVEL_ARCHITECTURE}",
        )
    own = _PROCESSOR_LEVELS.get(name.removeprefix("ml.").partition(".")[0], "")
    if own and level and choose_level(own, level) != own:
        fitting = [
            family
            for family, known in _PROCESSOR_LEVELS.items()
            if choose_level(known, level) == known
        ]
        raise UsageError(
            f"the image needs processors of level {level}, and {name} has {own}",
            hint=f"choose another instance type (families {', '.join(fitting)}), or build it with a"
            " lower `variant` in base()",
        )
