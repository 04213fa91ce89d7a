"""The exception to report out of nested groups."""

from danlu.errors import UsageError
from danlu.util.exception_groups import iter_leaf_errors, unwrap_group


def test_our_error_wins_over_earlier_ones_at_any_depth() -> None:
    error = UsageError("wrong")
    group = ExceptionGroup("tasks", [ValueError("first"), ExceptionGroup("inner", [error])])
    assert unwrap_group(group) is error
    assert [type(leaf) for leaf in iter_leaf_errors(group)] == [ValueError, UsageError]


def test_the_first_leaf_is_reported_otherwise() -> None:
    first, alone = ValueError("first"), KeyError("alone")
    assert unwrap_group(ExceptionGroup("tasks", [first, OSError()])) is first
    assert unwrap_group(alone) is alone
