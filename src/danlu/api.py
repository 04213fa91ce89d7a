"""``danlu.train`` and ``danlu.sweep``: training jobs from Python."""

from __future__ import annotations

import os
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from danlu.errors import DanluError, UsageError

if TYPE_CHECKING:
    from danlu.commands.jobreport import Outcome
    from danlu.commands.settings import Settings
    from danlu.commands.sweeporder import SweepOrder
    from danlu.commands.sweepreport import SweepReport
    from danlu.commands.sweepstudy import OptunaStudy
    from danlu.commands.trainorder import TrainOrder
    from danlu.jobs.types import Jobs, JobView, LogLine, Submission

__all__ = ["sweep", "train"]

T = TypeVar("T")

#: Of a function that says nothing: its variables are the plainest (RANK, WORLD_SIZE).
_PLAINEST = "pytorch"

_MANIFESTS = (".yaml", ".yml", ".json")

#: Seconds that replicas have when the call is interrupted.
_GRACE = 3.0


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
    log: Callable[[str], object] | None = print,
) -> Any:
    """Train ``what`` on replicas of this machine, and wait for the end.

    A function is called on every replica with ``args`` and ``kwargs``, in processes of this
    Python; what it returns on rank 0 is the value. A path is a script, whose arguments are
    ``args``, or a manifest (``.yaml``); then the value is the job's
    :class:`~danlu.commands.jobreport.Outcome`. ``workers`` is ``replicas={"worker": …}``.
    ``framework`` is guessed from imports where it is not given. ``cpu`` (cores), ``memory``
    (``"4G"``) and ``gpu`` are of each replica; ``environment`` are further variables; ``deadline``
    is in seconds. Each line that replicas write is given to ``log``.

    Raises :class:`~danlu.errors.JobFailed`, from the exception that a function raised, and
    :class:`~danlu.errors.UsageError` for what cannot be ordered so. Interrupting it stops the job.
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
        variables=environment or {},
    )
    with _told_whole():
        return _train(what, tuple(args), kwargs or {}, order, log=log)


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
    try:
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
    *,
    log: Callable[[str], object] | None,
) -> Any:
    from danlu.commands.settings import load_settings

    _refuse_in_replica()
    settings = load_settings()
    if callable(what):
        return _function(what, args, kwargs, order, settings=settings, log=log)
    if kwargs:
        raise UsageError("kwargs are for functions", hint="a script's arguments are args")
    return _path(os.fspath(what), args, order, settings=settings, log=log)


def _refuse_in_replica() -> None:
    from danlu.commands.shipping import importing

    script = importing()
    if script:
        raise UsageError(
            f"{script} orders a job while a replica of that job imports it",
            hint='put the call below `if __name__ == "__main__":`',
        )


def _function(
    function: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    order: TrainOrder,
    *,
    settings: Settings,
    log: Callable[[str], object] | None,
) -> Any:
    from tempfile import TemporaryDirectory

    from danlu.commands.shipping import opened, pack, program, raised

    if order.env or order.image:
        raise UsageError(
            "a function runs in processes of this Python",
            hint="write it into a script, which can run in an environment",
        )
    with TemporaryDirectory(prefix="danlu-call-") as place:
        directory = Path(place)
        pack(function, args, kwargs, directory=directory)
        ordered = msgspec.structs.replace(
            order,
            command=program(directory, sys.executable),
            framework=order.framework or _guessed(function),
            python=sys.executable,
            host_python=True,
            name=order.name or _name(function),
            value="leader",
        )
        told, value = _run(ordered, settings, log)
        if not told.succeeded:
            raise _why(told, raised(directory))
    return None if value is None else opened(value)


def _guessed(function: Callable[..., Any]) -> str:
    import inspect

    from danlu.commands.frameworkguess import guess

    try:
        file = inspect.getsourcefile(function)
        return guess(Path(file)).framework if file else _PLAINEST
    except (TypeError, UsageError):
        return _PLAINEST


def _name(function: Callable[..., Any]) -> str:
    from danlu.commands.trainmanifest import fresh_name

    return fresh_name(str(getattr(function, "__name__", "function")).strip("<>_"))


def _why(told: Outcome, raised: Any) -> Exception:
    from danlu.commands.jobreport import failure

    error = failure(told)
    if raised is not None:
        error.details = tuple(raised.text.splitlines())
        error.__cause__ = raised.error
    return error


def _path(
    path: str,
    args: Sequence[Any],
    order: TrainOrder,
    *,
    settings: Settings,
    log: Callable[[str], object] | None,
) -> Outcome:
    from danlu.commands.jobreport import failure

    words = tuple(str(one) for one in args)
    kind = "file" if path.endswith(_MANIFESTS) else "script"
    fields: dict[str, Any] = {kind: path, "args": words}
    told, _ = _run(msgspec.structs.replace(order, **fields), settings, log)
    if not told.succeeded:
        raise failure(told)
    return told


def _run(
    order: TrainOrder, settings: Settings, log: Callable[[str], object] | None
) -> tuple[Outcome, bytes | None]:
    """The order to its end, in an event loop of its own: a notebook has one that runs.

    In a notebook it is shown as a cell's, where nobody else wants its lines.
    """
    from danlu.commands.jobs import here
    from danlu.notebook import calls

    notebook = calls.here() if log is print else None
    if notebook is not None:
        ended = calls.train(order, notebook)
        return ended.outcome, ended.result.value
    ordered = _ready(order, settings)
    return _awaited(partial(_followed, here(settings), ordered, log))


def _ready(order: TrainOrder, settings: Settings) -> Submission:
    from danlu.commands.train import plan, submission

    planned = plan(order, settings=settings)
    return submission(planned, order, settings=settings, progress=lambda event: None)


def _awaited(act: Callable[[], Awaitable[T]]) -> T:
    from anyio.from_thread import start_blocking_portal

    with start_blocking_portal() as portal:
        future = portal.start_task_soon(act)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


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
    from danlu.commands.jobs import here
    from danlu.commands.settings import load_settings
    from danlu.commands.sweeporder import carry_out, proposals
    from danlu.notebook import calls

    _refuse_in_replica()
    settings = load_settings()
    points = proposals(wanted, study)
    notebook = calls.here()
    if notebook is not None:
        return calls.sweep(wanted, points, order, notebook, changed=changed)
    base = _ready(order, settings)
    jobs = here(settings)

    def told(report: SweepReport) -> None:
        changed(report)

    return _awaited(partial(carry_out, wanted, points, base=base, jobs=jobs, changed=told))


async def _followed(
    jobs: Jobs, ordered: Submission, log: Callable[[str], object] | None
) -> tuple[Outcome, bytes | None]:
    import anyio

    from danlu.commands.jobreport import outcome
    from danlu.commands.jobs import follow

    name = await jobs.submit(ordered)
    try:
        view = await follow(jobs, name, _Told(log))
        told = await outcome(jobs, view)
        result = await jobs.result(name) if ordered.value != "none" else None
    except BaseException:
        with anyio.move_on_after(_GRACE + 1, shield=True):
            await jobs.stop(name, grace=_GRACE)
        raise
    return told, result.value if result else None


class _Told:
    """Gives the lines of replicas to a function."""

    def __init__(self, log: Callable[[str], object] | None) -> None:
        self._log = log

    def view(self, view: JobView) -> None:
        """Nothing is drawn here."""

    def line(self, line: LogLine) -> None:
        """Give it."""
        from danlu.commands.jobreport import text_of

        if self._log is not None:
            self._log(f"{line.replica} │ {text_of(line.data)}")
