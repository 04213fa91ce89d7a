"""Why a command in the sandbox failed."""

from __future__ import annotations

from collections.abc import Iterable

from danlu.builder.embedded.context import Context
from danlu.errors import DanluError, StepFailed
from danlu.util.space import full_disk, was_full

__all__ = ["step_failure"]


def step_failure(
    context: Context, message: str, *, code: int, last: Iterable[str], hint: str = ""
) -> DanluError:
    """The error of a command that ended with ``code``, after the lines ``last``.

    :class:`StoreError` where the disk was full, which is not the command's fault; else
    :class:`StepFailed` with ``message`` and ``hint``.
    """
    details = tuple(last)
    root = context.store.root
    if was_full(root, details):
        return full_disk(f"the store ({root})", details=details)
    return StepFailed(message, code=code, details=details, hint=hint)
