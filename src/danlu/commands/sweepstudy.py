"""Points that an Optuna study suggests, over the same axes as a grid (``danlu[sweep]``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from danlu.commands.sweepreport import Goal, Trial
from danlu.commands.sweepspace import Axis, Point
from danlu.errors import MachineError, UsageError

if TYPE_CHECKING:
    import optuna

    OptunaStudy: TypeAlias = optuna.Study

__all__ = ["Study", "goal_of", "new_study"]


def new_study(goal: Goal, *, seed: int | None = None) -> optuna.Study:
    """A study in memory that minimises or maximises, and gives no trial up early.

    Raises :class:`MachineError` where Optuna is not installed.
    """
    try:
        import optuna
    except ImportError as error:
        hint = "install it beside danlu: pip install 'danlu[sweep]'"
        raise MachineError("Optuna is not installed", hint=hint) from error
    # Its lines on stderr would go through the table.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        direction="minimize" if goal == "min" else "maximize",
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.NopPruner(),
    )


def goal_of(study: optuna.Study) -> Goal:
    """What the study wants; :class:`UsageError` for one of several objectives."""
    directions = [one.name for one in study.directions]
    if len(directions) != 1:
        raise UsageError("a study of several objectives cannot drive a sweep")
    return "max" if directions[0] == "MAXIMIZE" else "min"


class _Suggested:
    """A trial of the study."""

    def __init__(self, study: optuna.Study, trial: optuna.Trial) -> None:
        self.point: Point = {name: _text(value) for name, value in trial.params.items()}
        self._study = study
        self._trial = trial
        self._steps: set[int] = set()

    async def report(self, value: float, *, step: int) -> bool:
        """Tell the study of a value on the way; True where its pruner gives the trial up."""
        import anyio.to_thread

        if step in self._steps:
            return False
        self._steps.add(step)

        def told() -> bool:
            self._trial.report(value, step)
            return self._trial.should_prune()

        return await anyio.to_thread.run_sync(told)

    async def tell(self, trial: Trial) -> None:
        """Tell the study how a trial ended: without a value it failed."""
        import anyio.to_thread
        from optuna.trial import TrialState

        def told() -> None:
            if trial.state == "Pruned":
                self._study.tell(self._trial, state=TrialState.PRUNED)
            elif trial.compared:
                self._study.tell(self._trial, trial.value)
            else:
                self._study.tell(self._trial, state=TrialState.FAIL)

        await anyio.to_thread.run_sync(told)


class Study:
    """``total`` points of a study over ``axes``, as :class:`danlu.commands.sweep.Proposals`.

    The study may lie in a database: what waits for it is done in a thread.
    """

    def __init__(self, study: optuna.Study, axes: Sequence[Axis], *, total: int) -> None:
        self.total = total
        self._left = total
        self._study = study
        self._distributions = {axis.name: _distribution(axis) for axis in axes}

    async def ask(self) -> _Suggested | None:
        """What the study suggests next."""
        import anyio.to_thread

        if not self._left:
            return None
        self._left -= 1
        trial = await anyio.to_thread.run_sync(self._study.ask, self._distributions)
        return _Suggested(self._study, trial)


def _distribution(axis: Axis) -> optuna.distributions.BaseDistribution:
    from optuna.distributions import (
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    span = axis.span
    if span is None:
        return CategoricalDistribution(axis.choices)
    low, high, step = span.low, span.high, span.step
    if step is not None:
        # The last value of the grid: Optuna warns of a range that its steps do not end at.
        high = low + (high - low) // step * step
    if span.whole:
        return IntDistribution(int(low), int(high), log=span.log, step=int(step or 1))
    return FloatDistribution(
        float(low), float(high), log=span.log, step=None if step is None else float(step)
    )


def _text(value: Any) -> str:
    # 12 digits: 0.1 + 2 * 0.1 is meant to be 0.3.
    return f"{value:.12g}" if isinstance(value, float) else str(value)
