"""A finding about one call, before its place in the file is known; and the nearest name."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Finding", "nearest", "suggestion"]


class Finding(Exception):
    """Something is wrong with a call; ``argument`` names the parameter, or its position.

    It never leaves the language: whoever knows the call's place turns it into a
    :class:`danlu.errors.BuildFileError`.
    """

    def __init__(self, message: str, *, hint: str = "", argument: str | int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.argument = argument


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the one of ``names`` that ``name`` was probably meant to be, or an empty string."""
    from difflib import get_close_matches

    known = sorted(names)
    folded = {candidate.casefold(): candidate for candidate in known}
    exact = folded.get(name.casefold())
    if exact is not None:
        return exact
    found = get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    if found:
        return folded[found[0]]
    starts = [known_name for known_name in known if len(name) > 2 and name in known_name]
    return starts[0] if starts else ""


def suggestion(name: str, names: Iterable[str], *, what: str = "") -> str:
    """Return a hint: the nearest name if there is one, else (with ``what``) all the names."""
    known = sorted(names)
    near = nearest(name, known)
    if near:
        return f"did you mean '{near}'?"
    return f"{what}: {', '.join(known)}" if what and known else ""
