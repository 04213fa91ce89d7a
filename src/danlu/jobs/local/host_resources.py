"""CPU cores and GPUs of this machine, and the number of threads a replica's libraries start.

Libraries start one thread per visible core. Replicas on the same machine, and processes of the same
replica, would all do that and slow each other down, so each replica gets its share in the variables
that the libraries read. These are defaults: values from the job, the image or the user's
environment win.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from danlu.engine.gpu.provider import list_gpu_choices
from danlu.engine.gpu.selection import GpuChoice, limit_to_visible
from danlu.errors import MachineError
from danlu.sandbox.launcher.cgroup import cpu_quota
from danlu.training.framework import Framework
from danlu.training.pod_template import find_main_container
from danlu.training.registry import BUILT_IN_FRAMEWORKS
from danlu.training.types import Job, ReplicaId, ReplicaType
from danlu.util.quantity import parse_quantity

# Read by OpenMP (PyTorch, XGBoost, MXNet, Paddle, scikit-learn), and by MKL, OpenBLAS and numexpr
# if their own variables are not set.
_OPENMP_THREADS = "OMP_NUM_THREADS"

_NVIDIA_SMI_TIMEOUT = 30


@cache
def available_cores() -> float:
    """Return the number of cores that this process may use, by CPU affinity and cgroup quota.

    Cached, because the cgroup file system is hidden after entering namespaces.
    """
    cores = len(os.sched_getaffinity(0))
    quota = cpu_quota()
    return cores if quota is None else min(cores, quota)


def thread_environment(
    job: Job,
    framework: Framework,
    replica: ReplicaId,
    *,
    members: Sequence[ReplicaId],
    cores: float,
) -> dict[str, str]:
    """Return the variables that limit the threads of a replica's main container.

    A replica's share is its CPU limit, or else ``cores`` divided by those of ``members`` (all
    replicas of the job) that compute. Returns nothing if a launcher inside the replica chooses the
    number (torchrun sets ``OMP_NUM_THREADS=1``).
    """
    processes = framework.count_processes(job, replica.type)
    if processes < 1:
        return {}
    limit = _cpu_limit(job, framework, replica.type)
    computing = sum(framework.computes(job, member.type) for member in members)
    share = cores / max(computing, 1) if limit is None else min(limit, cores)
    return thread_variables(max(1, int(share / processes)), framework)


def thread_variables(threads: int, framework: Framework) -> dict[str, str]:
    """Return the thread-count variables of all frameworks' libraries: scripts use several."""
    known = (*BUILT_IN_FRAMEWORKS, framework)
    names = (name for framework in known for name in framework.thread_variables)
    return dict.fromkeys((_OPENMP_THREADS, *names), str(threads))


def _cpu_limit(job: Job, framework: Framework, type: ReplicaType) -> float | None:
    main: Mapping[str, object] = find_main_container(
        job.replicas[type].template, framework.container
    )
    resources = main.get("resources")
    limits = resources.get("limits") if isinstance(resources, Mapping) else None
    return parse_quantity(limits["cpu"]) if limits and "cpu" in limits else None


def available_gpus() -> tuple[int, ...]:
    """Return the indexes of the GPUs that ``CUDA_VISIBLE_DEVICES`` does not hide.

    Without ``nvidia-smi`` they are those that the kernel's driver lists, NVIDIA's or AMD's. Raises
    :class:`MachineError` if the driver does not respond.
    """
    choices = _query_gpus()
    visible = limit_to_visible(choices, os.environ)
    return tuple(sorted(int(choice.names[0]) for choice in visible))


def _query_gpus() -> list[GpuChoice]:
    """Return each GPU by its index and its UUID."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return list_gpu_choices(Path("/"))
    command = [program, "--query-gpu=index,uuid", "--format=csv,noheader"]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=_NVIDIA_SMI_TIMEOUT, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        hint = "run `nvidia-smi` to see its error; the driver may not be loaded"
        raise MachineError("cannot query the GPUs: nvidia-smi failed", hint=hint) from error
    rows = (line.replace(" ", "").partition(",") for line in result.stdout.splitlines())
    return [GpuChoice((index, uuid)) for index, _, uuid in rows if index.isdigit()]
