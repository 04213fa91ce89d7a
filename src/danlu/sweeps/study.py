"""Points that an Optuna study suggests, from the same axes as a grid (extra ``sweep``)."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import anyio.to_thread

from danlu.errors import MachineError, UsageError
from danlu.sweeps.report import Goal, SweepTrial
from danlu.sweeps.space import Point, SweepAxis

if TYPE_CHECKING:
    import optuna

    OptunaStudy: TypeAlias = optuna.Study


def create_study(
    goal: Goal, *, seed: int | None = None, storage: str = "", name: str = ""
) -> optuna.Study:
    """Create a study without a pruner, in memory or under ``name`` in a storage of Optuna.

    A study of that name is continued. ``storage`` is a URL (``sqlite:///trials.db``). Raises
    :class:`MachineError` if Optuna is not installed, and :class:`UsageError` for a storage that
    cannot be used, or a study with another goal.
    """
    # Optuna is an optional dependency, and takes seconds to import.
    try:
        import optuna
    except ImportError as error:
        hint = f"`{sys.executable} -m uv pip install --python {sys.executable} optuna`"
        raise MachineError("Optuna is not installed", hint=hint) from error
    # Its log lines on stderr would disturb the live table.
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        study = optuna.create_study(
            storage=storage or None,
            study_name=name or None,
            direction="minimize" if goal == "min" else "maximize",
            sampler=optuna.samplers.TPESampler(seed=seed),
            pruner=optuna.pruners.NopPruner(),
            load_if_exists=True,
        )
    # Whatever SQLAlchemy, a driver of a database, or their absence raises.
    except Exception as error:
        if not storage:
            raise
        first_line = str(error).partition("\n")[0]
        hint = "it is a URL: --storage sqlite:///trials.db"
        raise UsageError(f"cannot use the storage {storage}: {first_line}", hint=hint) from error
    # Optuna ignores the direction for a study that exists.
    if study_goal(study) != goal:
        raise UsageError(
            f"study {name} in {storage} has the goal {study_goal(study)}, not {goal}",
            hint=f"pass --goal {study_goal(study)}, or another --name",
        )
    return study


def study_goal(study: optuna.Study) -> Goal:
    """Return the direction of a study; :class:`UsageError` if it has several objectives."""
    directions = [direction.name for direction in study.directions]
    if len(directions) != 1:
        raise UsageError("a study with several objectives is not supported")
    return "max" if directions[0] == "MAXIMIZE" else "min"


class _SuggestedPoint:
    """A trial of the study."""

    def __init__(self, study: optuna.Study, trial: optuna.Trial) -> None:
        self.point: Point = {name: _format_value(value) for name, value in trial.params.items()}
        self._study = study
        self._trial = trial
        self._steps: set[int] = set()

    async def report(self, value: float, *, step: int) -> bool:
        """Report an intermediate value; return True if the study's pruner stops the trial."""
        if step in self._steps:
            return False
        self._steps.add(step)

        def report_to_study() -> bool:
            self._trial.report(value, step)
            return self._trial.should_prune()

        return await anyio.to_thread.run_sync(report_to_study)

    async def tell(self, trial: SweepTrial) -> None:
        """Report how a trial ended; without a value it failed."""
        from optuna.trial import TrialState

        def tell_study() -> None:
            self._trial.set_user_attr("job", trial.name)
            if trial.state == "Pruned":
                self._study.tell(self._trial, state=TrialState.PRUNED)
            elif trial.is_comparable:
                self._study.tell(self._trial, trial.value)
            else:
                self._study.tell(self._trial, state=TrialState.FAIL)

        await anyio.to_thread.run_sync(tell_study)


class StudySearch:
    """``total`` points of a study over ``axes``, as
    :class:`danlu.sweeps.runner.PointSource`.

    The study may use a database, so its blocking calls run in a thread.
    """

    def __init__(self, study: optuna.Study, axes: Sequence[SweepAxis], *, total: int) -> None:
        self.total = total
        self._left = total
        self._study = study
        self._distributions = {axis.name: _axis_distribution(axis) for axis in axes}

    async def ask(self) -> _SuggestedPoint | None:
        """Return the next suggestion of the study."""
        if not self._left:
            return None
        self._left -= 1
        trial = await anyio.to_thread.run_sync(self._study.ask, self._distributions)
        return _SuggestedPoint(self._study, trial)


def _axis_distribution(axis: SweepAxis) -> optuna.distributions.BaseDistribution:
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
        # Round down to the last step: Optuna warns if the range is not a multiple of the step.
        high = low + (high - low) // step * step
    if span.whole:
        return IntDistribution(int(low), int(high), log=span.log, step=int(step or 1))
    return FloatDistribution(
        float(low), float(high), log=span.log, step=None if step is None else float(step)
    )


def _format_value(value: Any) -> str:
    # 12 digits: 0.1 + 2 * 0.1 must be 0.3.
    return f"{value:.12g}" if isinstance(value, float) else str(value)
