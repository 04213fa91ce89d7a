"""The notebook's variables: pickle those that are sent, and set those that a job returns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import msgspec

from danlu.errors import JobFailed, UsageError
from danlu.jobs.results import open_values
from danlu.jobs.types import JobResult
from danlu.notebook.types import SentVariable
from danlu.replica_runtime import pickles
from danlu.util.config import TRANSFER_LIMIT
from danlu.util.suggest import did_you_mean


class PickledVariable(msgspec.Struct, frozen=True):
    """A pickled variable, as :class:`~danlu.notebook.types.SentVariable` describes it."""

    name: str
    data: bytes
    modules: tuple[str, ...] = ()
    libraries: Mapping[str, Sequence[str]] = {}


class UserNamespace:
    """The variables of a namespace (:class:`danlu.notebook.types.VariableStore`)."""

    def __init__(self, names: dict[str, Any]) -> None:
        self._names = names

    def write_pickles(
        self, names: Sequence[str], directory: Path, *, limit: int
    ) -> list[SentVariable]:
        """See :class:`~danlu.notebook.types.VariableStore`."""
        variables = pickle_variables(names, self._names, limit=limit)
        directory.mkdir(parents=True, exist_ok=True)
        for variable in variables:
            (directory / f"{variable.name}.pickle").write_bytes(variable.data)
        return [
            SentVariable(item.name, len(item.data), item.modules, item.libraries)
            for item in variables
        ]

    def write_modules(self, names: Sequence[str], directory: Path, *, limit: int) -> None:
        """See :class:`~danlu.notebook.types.VariableStore`."""

    @property
    def python_version(self) -> str:
        """See :class:`~danlu.notebook.types.VariableStore`."""
        return pickles.python_version()

    def find_kind(self, name: str) -> Literal["variable", "module", ""]:
        """See :class:`~danlu.notebook.types.VariableStore`."""
        if name not in self._names:
            return ""
        return "module" if isinstance(self._names[name], ModuleType) else "variable"

    def set_results(
        self, result: JobResult, names: Sequence[str], *, every: bool, trusted: bool
    ) -> None:
        """See :class:`~danlu.notebook.types.VariableStore`."""
        self._names.update(unpack_results(result, names, every=every, trusted=trusted))


def undefined_variable_error(name: str, known: Iterable[str]) -> UsageError:
    """Return the error for a variable that the notebook, which has those ``known``, lacks."""
    public = [variable for variable in known if not variable.startswith("_")]
    hint = did_you_mean(name, public, otherwise="run the cell that sets it first")
    return UsageError(f"variable {name} is not defined", hint=hint)


def pickle_variables(
    names: Iterable[str], values: Mapping[str, Any], *, limit: int = TRANSFER_LIMIT
) -> list[PickledVariable]:
    """Pickle variables, with cloudpickle if it is installed, in the order of their names.

    ``limit`` is in bytes, for all variables together. Raises :class:`UsageError` for a variable
    that does not exist, cannot be pickled or is too large.
    """
    room = limit
    variables = []
    for name in sorted(set(names)):
        if name not in values:
            raise undefined_variable_error(name, values)
        try:
            fields = pickles.pickle_value(name, values[name], max_bytes=limit, room=room)
        except pickles.NotSent as error:
            cause = error.__cause__
            raise UsageError(f"cannot send {name}: {error}", hint=error.hint) from cause
        room -= len(fields["data"])
        variables.append(
            PickledVariable(name, fields["data"], tuple(fields["modules"]), fields["libraries"])
        )
    return variables


def unpack_results(
    result: JobResult, names: Sequence[str], *, every: bool = False, trusted: bool = False
) -> dict[str, Any]:
    """Return the variables that a cell's job returned; with ``every`` each is a dict by replica.

    With ``trusted`` pickles are loaded also from untrusted environments. Raises :class:`JobFailed`
    if the job succeeded without returning its variables, and :class:`UsageError` as
    :func:`~danlu.jobs.results.open_values` does.
    """
    trusted, job = trusted or result.trusted, result.view.name
    by_replica = {
        replica: open_values(data, trusted=trusted, job=job)
        for replica, data in select_results(result, names, every=every).items()
    }
    return arrange_results(by_replica, names, every=every)


def select_results(result: JobResult, names: Sequence[str], *, every: bool) -> dict[str, bytes]:
    """Return the encoded values of the leader, or of ``every`` replica by name in their order.

    Raises :class:`JobFailed` if the leader returned none.
    """
    if not names:
        return {}
    if not every:
        if result.value is None:
            raise missing_results_error(names)
        return {"": result.value}
    known = [str(replica.id) for replica in result.view.replicas]
    ordered = [replica for replica in known if replica in result.values]
    ordered += sorted(set(result.values) - set(known))
    return {replica: result.values[replica] for replica in ordered}


def arrange_results(
    by_replica: Mapping[str, Mapping[str, Any]], names: Sequence[str], *, every: bool
) -> dict[str, Any]:
    """Return variables by name from the values of each replica; raises :class:`JobFailed`."""
    if not every:
        values: Mapping[str, Any] = by_replica.get("", {})
        return {name: values[name] for name in names if name in values}
    variables = {
        name: {replica: values[name] for replica, values in by_replica.items() if name in values}
        for name in names
    }
    missing = [name for name in names if not variables[name]]
    if missing:
        raise missing_results_error(missing)
    return variables


def missing_results_error(names: Sequence[str]) -> JobFailed:
    """Return the error for variables that a job did not return although it succeeded."""
    return JobFailed(
        f"the job ended without returning {', '.join(names)}",
        hint="the code must set the variable, and run to its end or call sys.exit(0)",
    )
