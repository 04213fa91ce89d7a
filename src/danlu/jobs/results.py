"""Decode what replicas returned: plain values, and pickles only if they are trusted.

Results (a file of the job, an entry of a ConfigMap) are untrusted input: they are written by
whatever the image contains, and on a cluster by anyone with write access. So they are decoded by
:mod:`danlu.replica_runtime.encoding`, which runs no code. A pickle is loaded only if the job's
environment is trusted; see SECURITY.md.
"""

from __future__ import annotations

import builtins
import pickle
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec

from danlu.errors import UsageError
from danlu.jobs.first_failure import find_cause, is_lost_connection
from danlu.replica_runtime import encoding
from danlu.replica_runtime.pickles import find_version_conflicts
from danlu.util.decoding import convert_value
from danlu.util.sanitize import strip_control_sequences

#: The length limits of a message and of a type name, in characters.
_MESSAGE, _TYPE = 4096, 200

_TRUST_HINT = (
    "if you trust what ran there: `%jobs attach NAME --trust-results`,"
    " danlu.attach('NAME', trust_results=True),"
    " or `trust_results = true` in the configuration; see SECURITY.md"
)

#: Built-in exceptions that can be rebuilt from their arguments, by name.
_EXCEPTIONS: Mapping[str, type[Exception]] = {
    name: kind
    for name, kind in vars(builtins).items()
    if isinstance(kind, type)
    and issubclass(kind, Exception)
    and not issubclass(kind, BaseExceptionGroup | Warning | UnicodeError)
}


class _ReturnedValue(msgspec.Struct, frozen=True):
    form: Literal["plain", "pickle"]
    data: memoryview
    modules: Sequence[str] = ()
    libraries: Mapping[str, Sequence[str]] = {}
    reason: str = ""
    hint: str = ""


class _ReturnedValues(msgspec.Struct, frozen=True):
    python: str
    values: dict[str, _ReturnedValue]


class _PickledError(msgspec.Struct, frozen=True):
    data: bytes
    modules: Sequence[str] = ()
    libraries: Mapping[str, Sequence[str]] = {}


class ReplicaError(msgspec.Struct, frozen=True):
    """An exception as a replica reported it; its text has no control characters.

    ``line`` is a line of the cell, ``time`` when it was raised. ``refused`` marks errors of danlu's
    own program, which have a ``hint``. ``arguments`` are those of a built-in exception. ``error``
    is the pickled exception, which is loaded only if it is trusted.
    """

    text: str
    type: str
    message: str
    time: float
    line: Annotated[int, msgspec.Meta(ge=1)] | None = None
    round: str = ""
    refused: bool = False
    hint: str = ""
    python: str = ""
    arguments: Sequence[bool | int | float | str | None] | None = None
    error: _PickledError | None = None


# -- values ---------------------------------------------------------------------------------------


def open_values(
    data: bytes, *, trusted: bool, compare: bool = True, job: str = ""
) -> dict[str, Any]:
    """Return the values of a replica by name, all or none.

    ``compare`` rejects pickles from another Python or other library versions. Raises
    :class:`UsageError` for pickles that are not ``trusted``, and for unreadable data.
    """
    returned = _decode_values(data)
    _refuse_pickles(returned.values, trusted=trusted, job=job)
    if compare:
        _compare_versions(returned)
    return {name: _open_value(name, value) for name, value in returned.values.items()}


def list_returned_names(data: bytes) -> list[str]:
    """Return the names of a replica's values without opening them; raises :class:`UsageError`."""
    return list(_decode_values(data).values)


def _decode_values(data: bytes) -> _ReturnedValues:
    try:
        return convert_value(encoding.decode(data, views=True), _ReturnedValues)
    except (encoding.DecodeError, msgspec.ValidationError) as error:
        raise UsageError(f"cannot read the results of the job: {error}") from error


def _refuse_pickles(values: Mapping[str, _ReturnedValue], *, trusted: bool, job: str) -> None:
    pickled = {name: value for name, value in values.items() if value.form == "pickle"}
    if trusted or not pickled:
        return
    name, value = next(iter(pickled.items()))
    reason = strip_control_sequences(value.reason)[:_MESSAGE] or f"{name} is a pickle"
    others = f" (and {len(pickled) - 1} more)" if len(pickled) > 1 else ""
    instead = strip_control_sequences(value.hint)[:_TYPE]
    hint = _TRUST_HINT.replace("NAME", job or "NAME")
    raise UsageError(
        f"{strip_control_sequences(name)[:_TYPE]} was returned as a pickle, "
        f"which is not trusted: {reason}{others}",
        hint=f"{instead}; or {hint}" if instead else hint,
    )


def _compare_versions(returned: _ReturnedValues) -> None:
    lines: dict[str, list[str]] = {}
    for name, value in returned.values.items():
        if value.form == "plain":
            continue
        for what, there, here in find_version_conflicts(
            returned.python,
            list(value.modules),
            {key: list(two) for key, two in _library_versions(value)},
        ):
            line = f"{what}: {there} in the job's environment, {here} in the notebook"
            lines.setdefault(line, []).append(name)
    if lines:
        names = sorted({name for concerned in lines.values() for name in concerned})
        raise UsageError(
            f"{', '.join(names)} cannot be returned: versions differ",
            details=tuple(sorted(lines)),
            hint="use the notebook's versions, or return plain numbers, strings and lists",
        )


def _library_versions(value: _ReturnedValue | _PickledError) -> list[tuple[str, Sequence[str]]]:
    return [(name, two) for name, two in value.libraries.items() if len(two) == 2]


def _open_value(name: str, value: _ReturnedValue) -> Any:
    read: Callable[[memoryview], Any] = encoding.decode if value.form == "plain" else pickle.loads
    try:
        return read(value.data)
    except Exception as error:
        kind = "" if value.form == "plain" else f"{type(error).__name__}: "
        raise UsageError(
            f"cannot read {name}, which the job returned: {kind}{error}",
            hint="return plain numbers, strings, lists and arrays, or write a file",
        ) from error


# -- what was raised ------------------------------------------------------------------------------


def find_causing_error(errors: Mapping[str, ReplicaError]) -> str:
    """Return the replica, of these by name, whose exception caused those of the others."""
    return find_cause(
        {
            replica: (error.time, is_lost_connection(f"{error.type}: {error.message}"))
            for replica, error in errors.items()
        }
    )


def describe_error(raised: ReplicaError) -> str:
    """Return an exception in one line: ``ValueError: no``."""
    if raised.refused:
        return raised.message
    if raised.type == "SystemExit":
        return f"it called sys.exit({raised.message})"
    first = raised.message.split("\n")[0]
    return f"{raised.type}: {first}" if first else raised.type


def open_error(data: bytes) -> ReplicaError | None:
    """Return the exception a replica reported; None if unreadable."""
    try:
        found = convert_value(encoding.decode(data), ReplicaError)
    except (encoding.DecodeError, msgspec.ValidationError):
        return None
    return msgspec.structs.replace(
        found,
        text="\n".join(map(strip_control_sequences, found.text.split("\n"))),
        type=strip_control_sequences(found.type)[:_TYPE],
        message="\n".join(map(strip_control_sequences, found.message[:_MESSAGE].split("\n"))),
        hint=strip_control_sequences(found.hint)[:_MESSAGE],
        python=strip_control_sequences(found.python)[:_TYPE],
    )


def rebuild_error(
    raised: ReplicaError, *, trusted: bool, compare: bool = True
) -> BaseException | None:
    """Return the exception itself: unpickled if trusted, else a built-in one by name.

    None if it is neither: no class of the replica's is imported.
    """
    if trusted and raised.error is not None:
        versions = {name: list(two) for name, two in _library_versions(raised.error)}
        if compare and find_version_conflicts(raised.python, list(raised.error.modules), versions):
            return None
        try:
            error = pickle.loads(raised.error.data)
        except Exception:
            return None
        return error if isinstance(error, BaseException) else None
    kind = _EXCEPTIONS.get(raised.type)
    if trusted or kind is None or raised.arguments is None:
        return None
    made = kind(*raised.arguments)
    made.add_note(raised.text.rstrip("\n"))
    return made
