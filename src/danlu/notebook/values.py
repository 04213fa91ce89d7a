"""Variables that travel: pickled for a job with what they need, and read when they come back."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from danlu.errors import JobFailed, UsageError
from danlu.guest import parcel
from danlu.guest.versions import differences

if TYPE_CHECKING:
    from danlu.jobs.types import Result
    from danlu.notebook.types import Values

__all__ = ["Limits", "Packed", "pack", "returned", "unpack"]


class Limits(msgspec.Struct, frozen=True):
    """Bytes that one variable may have when it is pickled, and all of them together."""

    one: int = 64 << 20
    together: int = 256 << 20


class Packed(msgspec.Struct, frozen=True):
    """A pickled variable, the modules it mentions, and by module the distribution and version."""

    name: str
    data: bytes
    modules: tuple[str, ...] = ()
    libraries: Mapping[str, Sequence[str]] = {}


def pack(names: Iterable[str], values: Values, *, limits: Limits | None = None) -> list[Packed]:
    """Pickle variables, by cloudpickle where it is installed, each name once and sorted.

    Raises :class:`UsageError` that names the variable for one that is not there, cannot be
    pickled, or is too large.
    """
    limits = limits or Limits()
    room = limits.together
    packed = []
    for name in sorted(set(names)):
        value = values.get(name)
        try:
            told = parcel.packed(name, value, most=limits.one, room=room)
        except parcel.NotSent as error:
            cause = error.__cause__
            raise UsageError(f"{name} cannot be sent: {error}", hint=error.hint) from cause
        room -= len(told["data"])
        packed.append(Packed(name, told["data"], tuple(told["modules"]), told["libraries"]))
    return packed


def unpack(data: bytes) -> dict[str, Any]:
    """What a replica returned, by name.

    Raises :class:`UsageError` where this Python, or a library of it, is not the one of the job.
    """
    told = pickle.loads(data)
    _compare(told)
    values = {}
    for name, one in told["values"].items():
        try:
            values[name] = pickle.loads(one["data"])
        except Exception as error:
            raise UsageError(
                f"{name}, which the job returned, cannot be read here:"
                f" {type(error).__name__}: {error}",
                hint="return plain numbers, texts, lists and arrays, or write a file",
            ) from error
    return values


def _compare(told: Mapping[str, Any]) -> None:
    lines: dict[str, list[str]] = {}
    for name, one in told["values"].items():
        for what, there, here in differences(told["python"], one["modules"], one["libraries"]):
            line = f"{what}: {there} in the environment of the job, {here} in the notebook"
            lines.setdefault(line, []).append(name)
    if lines:
        names = sorted({name for concerned in lines.values() for name in concerned})
        raise UsageError(
            f"{', '.join(names)} cannot be returned between these versions",
            details=tuple(sorted(lines)),
            hint="give the job an environment with the notebook's versions,"
            " or return plain numbers, texts and lists",
        )


def returned(result: Result, names: Sequence[str], *, every: bool = False) -> dict[str, Any]:
    """The variables that a cell's job was to return; with ``every`` each a mapping by replica.

    Raises :class:`JobFailed` where the job ended well and yet left none, :class:`UsageError` as
    :func:`unpack` does.
    """
    if not names:
        return {}
    if not every:
        if result.value is None:
            raise _nothing(names)
        return unpack(result.value)
    known = [str(one.id) for one in result.view.replicas if str(one.id) in result.values]
    order = [*known, *sorted(set(result.values) - set(known))]
    each = {replica: unpack(result.values[replica]) for replica in order}
    found = {
        name: {replica: values[name] for replica, values in each.items() if name in values}
        for name in names
    }
    missing = [name for name in names if not found[name]]
    if missing:
        raise _nothing(missing)
    return found


def _nothing(names: Sequence[str]) -> JobFailed:
    return JobFailed(
        f"the job ended without returning {', '.join(names)}",
        hint="the code must come to its end, or to sys.exit(0), where the variable is set",
    )
