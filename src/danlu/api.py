"""``danlu.train``, ``danlu.attach`` and ``danlu.sweep``: training jobs from Python."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from danlu.errors import DanluError, UsageError

if TYPE_CHECKING:
    from danlu.commands.jobreport import Outcome
    from danlu.commands.settings import Settings
    from danlu.commands.shipping import Call
    from danlu.commands.sweeporder import SweepOrder
    from danlu.commands.sweepreport import SweepReport
    from danlu.commands.sweepstudy import OptunaStudy
    from danlu.commands.trainorder import TrainOrder
    from danlu.jobs.types import Result

__all__ = ["attach", "sweep", "train"]

T = TypeVar("T")

_MANIFESTS = (".yaml", ".yml", ".json")


class _Wishes(msgspec.Struct, frozen=True):
    """What the caller wants of a job beside its end; see :func:`train`."""

    log: Callable[[str], object] | None
    every: bool
    detach: bool


def train(
    what: Callable[..., Any] | str | os.PathLike[str],
    *,
    framework: str = "",
    workers: int | None = None,
    replicas: Mapping[str, int] | None = None,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    cpu: float | str = "",
    memory: str = "",
    gpu: int | None = None,
    env: str = "",
    image: str = "",
    host_python: bool = False,
    environment: Mapping[str, str] | None = None,
    name: str = "",
    restart: str = "",
    backoff_limit: int | None = None,
    deadline: float | None = None,
    clean_pod_policy: str = "",
    volumes: Sequence[str] = (),
    every: bool = False,
    detach: bool = False,
    on: str = "",
    log: Callable[[str], object] | None = print,
) -> Any:
    """Train ``what`` on replicas of this machine, or ``on`` a cluster, and wait for the end.

    A function is called on every replica with ``args`` and ``kwargs``, in processes of this
    Python, or in containers of ``env`` (``FILE[:FUNC]``) or ``image``, which need cloudpickle here
    and the same minor version of Python there. What it returns on rank 0 is the value; with
    ``every`` what it returned on each replica, by the replica's name (``worker-0``). A path is a
    script, whose arguments are ``args``, or a manifest (``.yaml``); then the value is the job's
    :class:`~danlu.commands.jobreport.Outcome`. ``workers`` is ``replicas={"worker": …}``.
    ``framework`` is guessed from imports where it is not given. ``cpu`` (cores), ``memory``
    (``"4G"``) and ``gpu`` are of each replica; ``environment`` are further variables; ``deadline``
    is in seconds; ``volumes`` are ``SOURCE:TARGET[:ro]``, for containers. Each line that replicas
    write is given to ``log``. ``on`` is a place as ``danlu train --on`` takes it
    (``"kubernetes"``): there replicas are containers, and their code travels with the job.

    With ``detach`` it gives the job's name at once, and the job goes on when this process ends;
    else the job ends with it, however that comes. Raises :class:`~danlu.errors.JobFailed`, from the
    exception that a function raised, and :class:`~danlu.errors.UsageError` for what cannot be
    ordered so. Interrupting it stops the job.
    """
    from danlu.commands.trainorder import TrainOrder

    numbers = dict(replicas or {}) | ({} if workers is None else {"worker": workers})
    order = TrainOrder(
        directory=Path.cwd(),
        framework=framework,
        replicas=numbers,
        cpu=str(cpu),
        memory=memory,
        gpu=gpu,
        env=env,
        image=image,
        host_python=host_python,
        name=name,
        restart=restart,
        backoff_limit=backoff_limit,
        deadline=deadline,
        clean=clean_pod_policy,
        variables=environment or {},
        volumes=tuple(volumes),
        on=on,
        tied=True,
    )
    with _told_whole():
        return _train(what, tuple(args), kwargs or {}, order, _Wishes(log, every, detach))


def attach(
    name: str,
    *,
    every: bool = False,
    on: str = "",
    log: Callable[[str], object] | None = print,
) -> Any:
    """Wait for the end of a job that was left with ``detach``, and give what :func:`train` had.

    That is what the function returned (on each replica, with ``every``), or the
    :class:`~danlu.commands.jobreport.Outcome` of any other job. ``log`` is given all lines from
    the beginning. Raises as :func:`train` does. Interrupting it leaves the job alone.
    """
    from danlu.commands.settings import load_settings
    from danlu.commands.shipping import is_call
    from danlu.commands.trainrun import attached
    from danlu.notebook import calls

    with _told_whole():
        notebook = calls.here() if log is print else None
        if notebook is not None:
            told, result = calls.attach(name, notebook, on=on)
        else:
            told, result = attached(name, load_settings(), log=log, on=on)
        if is_call(result):
            return _given(told, result, every=every)
        return _succeeded(told)


def sweep(
    script: str | os.PathLike[str],
    space: Mapping[str, str | Sequence[Any]],
    *,
    study: OptunaStudy | None = None,
    trials: int | None = None,
    parallel: int | None = None,
    metric: str = "",
    goal: str = "min",
    pattern: str = "",
    framework: str = "",
    workers: int | None = None,
    replicas: Mapping[str, int] | None = None,
    args: Sequence[Any] = (),
    cpu: float | str = "",
    memory: str = "",
    gpu: int | None = None,
    env: str = "",
    image: str = "",
    host_python: bool = False,
    environment: Mapping[str, str] | None = None,
    name: str = "",
    on: str = "",
    changed: Callable[[SweepReport], object] = lambda report: None,
) -> SweepReport:
    """Train ``script`` at many points of ``space``, ``parallel`` jobs at once; the report.

    ``space`` has for each name a range as ``--sweep`` takes it (``"2:6"``, ``"1e-4:1e-1:log"``) or
    a sequence of values. Each value follows the script's ``args`` as ``--NAME VALUE``, or takes the
    place of ``{NAME}`` in them. All combinations are tried; with ``trials`` so many that an Optuna
    ``study`` (a new one) suggests, which is told how each ended. The value of a job is the
    ``metric`` it reported last, or what ``pattern`` finds last in its leader's log. ``report.best``
    is the best trial, ``report.trials`` are all; ``changed`` hears of every change. The rest is as
    :func:`train` takes it.

    Raises :class:`~danlu.errors.UsageError` for what cannot be ordered so; a trial that fails is
    no error. Interrupting it stops the jobs that run.
    """
    from danlu.commands.trainorder import TrainOrder

    path = os.fspath(script)
    kind = "file" if path.endswith(_MANIFESTS) else "script"
    fields: dict[str, Any] = {kind: path, "args": tuple(str(one) for one in args)}
    order = TrainOrder(
        directory=Path.cwd(),
        framework=framework,
        replicas=dict(replicas or {}) | ({} if workers is None else {"worker": workers}),
        cpu=str(cpu),
        memory=memory,
        gpu=gpu,
        env=env,
        image=image,
        host_python=host_python,
        name=name,
        variables=environment or {},
        on=on,
        tied=True,
        **fields,
    )
    with _told_whole():
        wanted = _sweep_order(space, study, metric=metric, goal=goal, pattern=pattern)
        wanted = msgspec.structs.replace(wanted, parallel=parallel, trials=trials)
        if study is not None and trials is None:
            raise UsageError("how many trials is the study to have?", hint="say it: trials=20")
        return _swept(order, wanted, study, changed)


@contextmanager
def _told_whole() -> Iterator[None]:
    """Let a traceback show what an error says beside its message."""
    from danlu.notebook import calls

    try:
        with calls.plainly():
            yield
    except DanluError as error:
        lines = [*(error.details if error.__cause__ is None else ()), error.hint]
        error.add_note("\n".join(filter(None, lines)))
        raise


def _train(
    what: Callable[..., Any] | str | os.PathLike[str],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    order: TrainOrder,
    wishes: _Wishes,
) -> Any:
    from danlu.commands.settings import load_settings
    from danlu.commands.shipping import Call

    _refuse_in_replica()
    settings = load_settings()
    if callable(what):
        return _called(Call(what, args, kwargs), order, settings=settings, wishes=wishes)
    if kwargs or wishes.every:
        given = "kwargs are" if kwargs else "every is"
        raise UsageError(f"{given} for functions", hint="a script's arguments are args")
    return _path(os.fspath(what), args, order, settings=settings, wishes=wishes)


def _refuse_in_replica() -> None:
    from danlu.commands.shipping import importing

    script = importing()
    if script:
        raise UsageError(
            f"{script} orders a job while a replica of that job imports it",
            hint='put the call below `if __name__ == "__main__":`',
        )


def _called(call: Call, order: TrainOrder, *, settings: Settings, wishes: _Wishes) -> Any:
    from danlu.commands.traincall import call_order

    with ExitStack() as stack:
        files = Path(stack.enter_context(TemporaryDirectory(prefix="danlu-call-")))
        ordered = call_order(call, order, files=files, every=wishes.every, settings=settings)
        if wishes.detach:
            return _left(ordered, settings)
        told, result = _end(ordered, settings, wishes, submitted=stack.close)
    return _given(told, result, every=wishes.every)


def _given(told: Outcome, result: Result, *, every: bool) -> Any:
    """What the function returned; raises :class:`JobFailed`."""
    from danlu.commands.shipping import value, values

    if not told.succeeded:
        raise _why(told, result)
    return values(result) if every else value(result)


def _why(told: Outcome, result: Result) -> Exception:
    """How the job failed, from what the function raised."""
    from danlu.commands.jobreport import failed_by, failure
    from danlu.commands.shipping import raised

    found = raised(result, first="" if told.replica is None else str(told.replica))
    if found is None:
        return failure(told)
    error = failure(failed_by(told, result.view, found.replica))
    error.details = tuple(found.text.splitlines())
    error.__cause__ = found.error
    return error


def _path(
    path: str,
    args: Sequence[Any],
    order: TrainOrder,
    *,
    settings: Settings,
    wishes: _Wishes,
) -> Outcome | str:
    words = tuple(str(one) for one in args)
    kind = "file" if path.endswith(_MANIFESTS) else "script"
    fields: dict[str, Any] = {kind: path, "args": words}
    ordered = msgspec.structs.replace(order, **fields)
    if wishes.detach:
        return _left(ordered, settings)
    return _succeeded(_end(ordered, settings, wishes)[0])


def _succeeded(told: Outcome) -> Outcome:
    from danlu.commands.jobreport import failure

    if not told.succeeded:
        raise failure(told)
    return told


def _left(order: TrainOrder, settings: Settings) -> str:
    """The name of the order's job, which was started and is left alone."""
    from danlu.commands.trainrun import submitted
    from danlu.notebook import calls

    notebook = calls.here()
    return submitted(order, settings) if notebook is None else calls.submit(order, notebook)


def _end(
    order: TrainOrder,
    settings: Settings,
    wishes: _Wishes,
    *,
    submitted: Callable[[], object] = lambda: None,
) -> tuple[Outcome, Result]:
    """How the order's job ended, and what it left.

    In a notebook it is shown as a cell's, where nobody else wants its lines. ``submitted`` is
    called when nothing of the order's own files is needed any more.
    """
    from danlu.commands.trainrun import run
    from danlu.notebook import calls

    notebook = calls.here() if wishes.log is print else None
    if notebook is not None:
        return calls.train(order, notebook)
    return run(order, settings, log=wishes.log, submitted=submitted)


def _sweep_order(
    space: Mapping[str, str | Sequence[Any]],
    study: OptunaStudy | None,
    *,
    metric: str,
    goal: str,
    pattern: str,
) -> SweepOrder:
    from danlu.commands.sweeporder import SweepOrder
    from danlu.commands.sweepreport import measure_of
    from danlu.commands.sweepspace import parse_axis, parse_choices
    from danlu.commands.sweepstudy import goal_of

    axes = tuple(
        parse_axis(f"{name}={values}")
        if isinstance(values, str)
        else parse_choices(name, [str(one) for one in values])
        for name, values in space.items()
    )
    wanted = goal if study is None else goal_of(study)
    return SweepOrder(axes, measure_of(metric, wanted, pattern))


def _swept(
    order: TrainOrder,
    wanted: SweepOrder,
    study: OptunaStudy | None,
    changed: Callable[[SweepReport], object],
) -> SweepReport:
    from danlu.commands.places import jobs_on
    from danlu.commands.settings import load_settings
    from danlu.commands.sweeporder import carry_out, placed, proposals
    from danlu.commands.trainrun import awaited, ready
    from danlu.notebook import calls

    _refuse_in_replica()
    settings = load_settings()
    points = proposals(wanted, study)
    wanted = placed(wanted, order.on)
    notebook = calls.here()
    if notebook is not None:
        return calls.sweep(wanted, points, order, notebook, changed=changed)
    base = ready(order, settings)
    jobs = jobs_on(order.on, settings)

    def told(report: SweepReport) -> None:
        changed(report)

    return awaited(partial(carry_out, wanted, points, base=base, jobs=jobs, changed=told))
