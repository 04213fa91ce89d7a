"""The implementation of ``danlu.train``, ``danlu.attach`` and ``danlu.sweep``."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import msgspec

from danlu.engine.settings import Settings, load_settings
from danlu.errors import DanluError, UsageError
from danlu.jobs.backends import select_backend
from danlu.jobs.report import JobSummary, blame_replica, job_error
from danlu.jobs.types import JobResult
from danlu.submission.call import build_call_options
from danlu.submission.function_transport import (
    RemoteCall,
    first_error,
    importing_script,
    is_call,
    leader_value,
    replica_values,
)
from danlu.submission.options import TrainOptions
from danlu.submission.run import (
    attach_job,
    plan_submission,
    run_in_portal,
    run_job,
    submit_and_detach,
)
from danlu.sweeps.options import (
    SweepOptions,
    apply_target_defaults,
    create_point_source,
    execute_sweep,
)
from danlu.sweeps.report import SweepReport, parse_objective
from danlu.sweeps.space import parse_axis, parse_choices
from danlu.sweeps.study import study_goal

if TYPE_CHECKING:
    # Loaded in kernels only, see _current_notebook.
    from danlu.notebook.api_display import NotebookRunner
    from danlu.sweeps.study import OptunaStudy  # of the optional dependency


_MANIFEST_SUFFIXES = (".yaml", ".yml", ".json")


class RunOptions(msgspec.Struct, frozen=True):
    """The arguments of :func:`danlu.train` that are not options of the job."""

    log: Callable[[str], object] | None
    every: bool
    detach: bool
    trusted: bool = False


def program_fields(path: str, args: Sequence[Any]) -> dict[str, Any]:
    """Return the fields of :class:`TrainOptions` for a script or a manifest."""
    kind = "file" if path.endswith(_MANIFEST_SUFFIXES) else "script"
    return {kind: path, "args": tuple(str(argument) for argument in args)}


def train_target(
    target: Callable[..., Any] | str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: TrainOptions,
    run: RunOptions,
) -> Any:
    """Train a function, a script or a manifest; see :func:`danlu.train`."""
    with add_details():
        _reject_in_replica()
        settings = load_settings()
        if callable(target):
            call = RemoteCall(target, tuple(args), kwargs)
            return _train_function(call, options, run, settings)
        if kwargs or run.every:
            name = "kwargs" if kwargs else "every"
            raise UsageError(
                f"{name} is only valid with a function",
                hint="pass the arguments of a script as args",
            )
        options = msgspec.structs.replace(options, **program_fields(target, args))
        if run.detach:
            return _submit_and_detach(options, settings)
        return raise_on_failure(_run_to_end(options, settings, run)[0])


def _train_function(
    call: RemoteCall, options: TrainOptions, run: RunOptions, settings: Settings
) -> Any:
    with ExitStack() as stack:
        files = Path(stack.enter_context(TemporaryDirectory(prefix="danlu-call-")))
        options = build_call_options(call, options, files=files, every=run.every, settings=settings)
        if run.detach:
            return _submit_and_detach(options, settings)
        # The files are copied at submission, so they need not stay until the job ends.
        summary, result = _run_to_end(options, settings, run, submitted=stack.close)
    return _return_value(summary, result, every=run.every, trusted=run.trusted)


def _submit_and_detach(options: TrainOptions, settings: Settings) -> str:
    notebook = _current_notebook()
    if notebook is not None:
        return notebook.submit(options)
    return submit_and_detach(options, settings)


def _run_to_end(
    options: TrainOptions,
    settings: Settings,
    run: RunOptions,
    *,
    submitted: Callable[[], object] = lambda: None,
) -> tuple[JobSummary, JobResult]:
    """Run a job to its end and return how it ended.

    In a notebook the job is shown like a cell's, unless ``log`` takes its output. ``submitted`` is
    called as soon as the files of the job are no longer needed.
    """
    notebook = _current_notebook() if run.log is print else None
    if notebook is not None:
        return notebook.train(options)
    return run_job(options, settings, log=run.log, on_submit=submitted)


def attach_to_job(name: str, run: RunOptions, *, on: str = "") -> Any:
    """Wait for a job and return its value; see :func:`danlu.attach`."""
    with add_details():
        notebook = _current_notebook() if run.log is print else None
        if notebook is not None:
            summary, result = notebook.attach(name, on=on)
        else:
            summary, result = attach_job(name, load_settings(), log=run.log, on=on)
        if is_call(result):
            return _return_value(summary, result, every=run.every, trusted=run.trusted)
        return raise_on_failure(summary)


def run_sweep(
    options: TrainOptions,
    space: Mapping[str, str | Sequence[Any]],
    study: OptunaStudy | None,
    *,
    trials: int | None,
    parallel: int | None,
    metric: str,
    goal: str,
    pattern: str,
    changed: Callable[[SweepReport], object],
) -> SweepReport:
    """Run a sweep; see :func:`danlu.sweep`."""
    with add_details():
        axes = tuple(
            parse_axis(f"{name}={values}")
            if isinstance(values, str)
            else parse_choices(name, [str(value) for value in values])
            for name, values in space.items()
        )
        objective = parse_objective(metric, goal if study is None else study_goal(study), pattern)
        if study is not None and trials is None:
            raise UsageError("a study requires a number of trials", hint="for example trials=20")
        sweep = SweepOptions(axes, objective, parallel, trials)
        _reject_in_replica()
        settings = load_settings()
        points = create_point_source(sweep, study)
        sweep = apply_target_defaults(sweep, options.on)
        notebook = _current_notebook()
        if notebook is not None:
            return notebook.sweep(sweep, points, options, changed=changed)
        base = plan_submission(options, settings)
        jobs = select_backend(options.on, settings)
        return run_in_portal(
            partial(execute_sweep, sweep, points, base=base, jobs=jobs, changed=changed)
        )


def _return_value(summary: JobSummary, result: JobResult, *, every: bool, trusted: bool) -> Any:
    """Return what the function returned; raises :class:`JobFailed`."""
    if not summary.is_successful:
        raise _failure_error(summary, result, trusted)
    if every:
        return replica_values(result, trusted=trusted)
    return leader_value(result, trusted=trusted)


def _failure_error(summary: JobSummary, result: JobResult, trusted: bool) -> Exception:
    """Return the error for a failed job, caused by what the function raised."""
    first = "" if summary.replica is None else str(summary.replica)
    raised = first_error(result, first=first, trusted=trusted)
    if raised is None:
        return job_error(summary)
    error = job_error(blame_replica(summary, result.view, raised.replica, raised.reason))
    error.details = tuple(raised.text.splitlines())
    error.__cause__ = raised.error
    return error


def raise_on_failure(summary: JobSummary) -> JobSummary:
    """Return the summary of a job that succeeded; raises :class:`JobFailed`."""
    if not summary.is_successful:
        raise job_error(summary)
    return summary


def _reject_in_replica() -> None:
    """Raise :class:`UsageError` in a replica that imports the script which started the job."""
    script = importing_script()
    if script:
        raise UsageError(
            f"{script} starts a job when it is imported by a replica of that job",
            hint='put the call under `if __name__ == "__main__":`',
        )


def _current_notebook() -> NotebookRunner | None:
    """Return a runner if this process is a notebook's kernel."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    if shell is None or getattr(shell, "kernel", None) is None:
        return None
    # Scripts need none of the notebook's modules.
    from danlu.notebook.api_display import NotebookRunner

    return NotebookRunner.for_shell(shell)


@contextmanager
def add_details() -> Iterator[None]:
    """Add the details and the hint of an error to its traceback."""
    try:
        with ExitStack() as stack:
            notebook = _current_notebook()
            if notebook is not None:
                stack.enter_context(notebook.hide_traceback())
            yield
    except DanluError as error:
        details = error.details if error.__cause__ is None else ()
        error.add_note("\n".join(filter(None, [*details, error.hint])))
        raise
