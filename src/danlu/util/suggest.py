"""Suggest the name that a user probably meant: "did you mean …?"."""

from __future__ import annotations

from collections.abc import Iterable


def closest_match(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the one of ``known`` that is most like ``name``, or ``""`` if none is close.

    Case is ignored. ``cutoff`` is the least similarity (0 to 1, :mod:`difflib`'s ratio).
    """
    # Imported here because the command line's start-up path imports this module.
    from difflib import get_close_matches

    by_folded = {candidate.casefold(): candidate for candidate in sorted(known, reverse=True)}
    matches = get_close_matches(name.casefold(), by_folded, n=1, cutoff=cutoff)
    return by_folded[matches[0]] if matches else ""


def did_you_mean(
    name: str,
    known: Iterable[str],
    *,
    otherwise: str = "",
    template: str = "{}",
    cutoff: float = 0.6,
) -> str:
    """Return the hint ``did you mean NAME?``, or ``otherwise`` if no known name is close.

    ``template`` formats the suggested name, for example "`{}`" or ``--{}``.
    """
    match = closest_match(name, known, cutoff=cutoff)
    return f"did you mean {template.format(match)}?" if match else otherwise


def find_nearest_name(name: str, known: Iterable[str]) -> str:
    """Return the closest match, else the first known name that contains ``name``, else ``""``."""
    names = sorted(known)
    match = closest_match(name, names)
    return match or next((item for item in names if len(name) > 2 and name in item), "")


def suggest_name(name: str, known: Iterable[str], *, what: str = "") -> str:
    """Return a hint: the nearest name if there is one, else (with ``what``) all the names."""
    names = sorted(known)
    nearest = find_nearest_name(name, names)
    if nearest:
        return f"did you mean '{nearest}'?"
    return f"{what}: {', '.join(names)}" if what and names else ""
