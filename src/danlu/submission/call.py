"""Turn ``danlu.train(function)`` into the options of a job that calls the function."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

import msgspec

from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.jobs.backends import find_target
from danlu.submission.framework_detection import detect_framework
from danlu.submission.function_transport import LABEL, RemoteCall, call_command, pack_call
from danlu.submission.job_code import collect_call_code
from danlu.submission.job_from_options import generate_job_name
from danlu.submission.options import TrainOptions
from danlu.submission.plan import plan_job
from danlu.training.registry import DEFAULT_FRAMEWORK, find_framework


def build_call_options(
    call: RemoteCall, options: TrainOptions, *, files: Path, every: bool, settings: Settings
) -> TrainOptions:
    """Return the options of a job that makes the call on every replica.

    What replicas need is written to ``files``, an empty directory that must exist until the job is
    submitted. Without an environment or an image replicas are processes of this Python. Raises
    :class:`UsageError` if the call cannot be sent.
    """
    in_container = bool(options.env or options.image)
    target = find_target(options.on)
    remote = target.is_remote
    if remote and not in_container:
        raise UsageError(
            f"an image is required to call {call.name} on {target.name}",
            hint="image=REF names one; env=FILE builds one and pushes it",
        )
    options = msgspec.structs.replace(
        options,
        command=call_command() if in_container else call_command(sys.executable),
        framework=options.framework or _guess_framework(call),
        python="" if in_container else sys.executable,
        host_python=not in_container,
        name=options.name or generate_job_name(call.name.rpartition(".")[2].strip("<>_")),
        labels={**options.labels, LABEL: call.name},
        files=files,
    )
    planned = plan_job(options, settings=settings)
    assert planned.target is not None
    project = planned.target.directory if in_container else None
    mentioned = pack_call(
        call, files, project=project, seen=not remote, limit=settings.config.transfer_bytes
    )
    framework = find_framework(planned.framework)
    # A leader that only starts the processes of others does not call the function.
    from_all = every or framework.leader(planned.job).type in framework.idle_types
    return msgspec.structs.replace(
        options,
        value="all" if from_all else "leader",
        code=collect_call_code(call, project, mentioned) if remote and project else {},
    )


def _guess_framework(call: RemoteCall) -> str:
    try:
        file = inspect.getsourcefile(call.target)
        return detect_framework(Path(file)).framework if file else DEFAULT_FRAMEWORK.name
    except (TypeError, UsageError):
        return DEFAULT_FRAMEWORK.name
