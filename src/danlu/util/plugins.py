"""Objects of installed packages, found through the entry points of a group."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from danlu.errors import UsageError

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")


class BrokenPlugin(UsageError):
    """The object of an installed package cannot be used; message and hint name the package."""


def list_plugins(group: str) -> list[EntryPoint]:
    """Return the entry points of a group, sorted by name."""
    # importlib.metadata takes a tenth of the start of a job, and what is built in doesn't need it.
    from importlib.metadata import entry_points

    return sorted(entry_points(group=group), key=lambda entry: (entry.name, entry.value))


def load_plugin(entry: EntryPoint, kind: type[T]) -> T:
    """Load the object of an entry point.

    Raises :class:`BrokenPlugin` if that fails, or if it is not a ``kind``.
    """
    try:
        found = entry.load()
    except Exception as error:
        raise broken_plugin(entry, kind, f"{type(error).__name__}: {error}") from error
    if not isinstance(found, kind):
        reason = f"{entry.value} is a {type(found).__name__}, not a {kind.__name__}"
        raise broken_plugin(entry, kind, reason)
    return found


def broken_plugin(entry: EntryPoint, kind: type, reason: str) -> BrokenPlugin:
    """Return the error for an object that cannot be used."""
    package = f"package {entry.dist.name}" if entry.dist else "an unknown package"
    return BrokenPlugin(
        f"{kind.__name__.lower()} {entry.name} of {package} cannot be used: {reason}",
        hint=f"update {package}, or uninstall it",
    )
