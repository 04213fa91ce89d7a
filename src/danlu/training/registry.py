"""Which frameworks there are: danlu's own, one line each, and those of other packages.

A package gives one through the entry point group ``danlu.frameworks``; the entry point is called
as the framework is. Other packages are looked at only when a name is not built in, or when all
frameworks are listed; one that is broken is an error for those alone who ask for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from danlu.errors import UsageError
from danlu.training.framework import Framework
from danlu.training.frameworks import jax, mpi, mxnet, paddle, pytorch, tensorflow, xgboost

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

__all__ = [
    "BUILT_IN",
    "GROUP",
    "BrokenFramework",
    "broken_frameworks",
    "framework_of",
    "frameworks",
]

GROUP = "danlu.frameworks"

BUILT_IN = (
    pytorch.FRAMEWORK,
    tensorflow.FRAMEWORK,
    mpi.FRAMEWORK,
    xgboost.FRAMEWORK,
    paddle.FRAMEWORK,
    jax.FRAMEWORK,
    mxnet.FRAMEWORK,
)


class BrokenFramework(UsageError):
    """A framework of an installed package cannot be used; message and hint name the package."""


def framework_of(kind_or_name: str) -> Framework:
    """The framework of that kind (``PyTorchJob``), name or alias, in any letter case.

    Raises :class:`UsageError` with the nearest name where there is none, and
    :class:`BrokenFramework` where the package that has one by this name cannot be used.
    """
    wanted = kind_or_name.lower()
    for framework in BUILT_IN:
        if wanted in _words(framework):
            return framework
    for entry in _installed():
        if entry.name.lower() == wanted:
            return _loaded(entry, BUILT_IN)
    others, broken = _others()
    for framework in others:
        if wanted in _words(framework):
            return framework
    raise _unknown(kind_or_name, (*BUILT_IN, *others), broken)


def frameworks() -> tuple[Framework, ...]:
    """All frameworks that can be used: danlu's own, then those of other packages by name."""
    return (*BUILT_IN, *_others()[0])


def broken_frameworks() -> tuple[BrokenFramework, ...]:
    """What is wrong with those of other packages that cannot be used."""
    return tuple(_others()[1])


def _words(framework: Framework) -> frozenset[str]:
    """All that a framework may be called by, in small letters."""
    own = (framework.name, framework.kind, framework.plural, *framework.aliases)
    return frozenset(word.lower() for word in own)


def _installed() -> list[EntryPoint]:
    # Costs a start of danlu's own jobs a tenth of its time, and they need none of it.
    from importlib.metadata import entry_points

    return sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value))


def _others() -> tuple[list[Framework], list[BrokenFramework]]:
    """The frameworks of other packages, and why there are not more of them."""
    good: list[Framework] = []
    bad: list[BrokenFramework] = []
    for entry in _installed():
        try:
            good.append(_loaded(entry, (*BUILT_IN, *good)))
        except BrokenFramework as error:
            bad.append(error)
    return good, bad


def _loaded(entry: EntryPoint, beside: Sequence[Framework]) -> Framework:
    """The framework of an entry point, which may not be called as one of those ``beside`` it."""
    try:
        framework = entry.load()
    except Exception as error:
        raise _broken(entry, f"{type(error).__name__}: {error}") from error
    if not isinstance(framework, Framework):
        raise _broken(entry, f"{entry.value} is a {type(framework).__name__}, not a Framework")
    taken = next((one for one in beside if _words(one) & _words(framework)), None)
    if taken is not None:
        raise _broken(entry, f"{taken.kind} has that name or kind already")
    return framework


def _broken(entry: EntryPoint, reason: str) -> BrokenFramework:
    package = entry.dist.name if entry.dist else "of an unknown name"
    return BrokenFramework(
        f"the framework {entry.name} of the package {package} cannot be used: {reason}",
        hint=f"update the package {package}, or uninstall it",
    )


def _unknown(
    kind_or_name: str, known: Sequence[Framework], broken: Sequence[BrokenFramework]
) -> UsageError:
    import difflib

    words = {word.lower(): word for one in known for word in (one.name, one.kind, *one.aliases)}
    near = difflib.get_close_matches(kind_or_name.lower(), words, n=1)
    meant = f"did you mean {words[near[0]]}? " if near else ""
    return UsageError(
        f"no framework is called '{kind_or_name}'",
        hint=f"{meant}danlu knows {', '.join(one.name for one in known)}",
        # What was meant may be there, and broken.
        details=tuple(error.message for error in broken),
    )
