"""Send the result of a function, or the error it raised, from one process to another."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from typing import Any

from danlu.errors import DanluError
from danlu.util.exception_groups import unwrap_group


def pickle_outcome(work: Callable[[], object]) -> bytes:
    """Return the pickled result of ``work``, or the :class:`DanluError` that it raised."""
    return pickle.dumps(_run_work(work))


def pickle_error(error: OSError) -> bytes:
    """Return the outcome of a function that raised ``error``."""
    return pickle.dumps(("raised", error))


def unpickle_outcome(payload: bytes) -> object:
    """Return the result in ``payload``, or raise the error in it.

    ``payload`` must come from a process that runs our code only: see :mod:`pickle`.
    """
    kind, value = pickle.loads(payload)
    if kind == "value":
        return value
    if kind == "raised":
        raise value
    error_type, arguments, fields = value
    # Not by calling the class: some errors have keyword-only arguments that `args` does not hold.
    error = error_type.__new__(error_type, *arguments)
    error.args = arguments
    error.__dict__.update(fields)
    raise error


def _run_work(work: Callable[[], object]) -> tuple[str, Any]:
    try:
        return "value", work()
    except (DanluError, BaseExceptionGroup) as raised:
        error = unwrap_group(raised)
        if not isinstance(error, DanluError):
            raise
        return "error", (type(error), error.args, error.__dict__)
