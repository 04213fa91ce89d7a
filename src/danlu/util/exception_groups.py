"""Unwrap exception groups, in which task groups raise all errors together."""

from __future__ import annotations

from collections.abc import Iterator

from danlu.errors import DanluError


def iter_leaf_errors(error: BaseException) -> Iterator[BaseException]:
    """Yield the exceptions in a group and its subgroups, in order; or ``error`` itself."""
    if isinstance(error, BaseExceptionGroup):
        for inner in error.exceptions:
            yield from iter_leaf_errors(inner)
    else:
        yield error


def unwrap_group(error: BaseException) -> BaseException:
    """Return the first of our errors in a group, else the first exception; or ``error`` itself."""
    leaves = list(iter_leaf_errors(error))
    return next((leaf for leaf in leaves if isinstance(leaf, DanluError)), leaves[0])
