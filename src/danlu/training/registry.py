"""Which frameworks there are: danlu's own, one line each, and those of other packages.

A package gives one through the entry point group ``danlu.frameworks``; the entry point is called
as the framework is. Other packages are looked at only when a name is not built in, or when all
frameworks are listed: one that is broken harms nobody who does not ask for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint, entry_points
from typing import NoReturn

from danlu.errors import UsageError
from danlu.training.framework import Framework
from danlu.training.frameworks import jax, mpi, mxnet, paddle, pytorch, tensorflow, xgboost

__all__ = ["GROUP", "BrokenFramework", "framework_names", "framework_of", "frameworks"]

GROUP = "danlu.frameworks"

_BUILT_IN = (
    pytorch.FRAMEWORK,
    tensorflow.FRAMEWORK,
    mpi.FRAMEWORK,
    xgboost.FRAMEWORK,
    paddle.FRAMEWORK,
    jax.FRAMEWORK,
    mxnet.FRAMEWORK,
)


class BrokenFramework(UsageError):
    """A framework of an installed package cannot be used."""


def framework_of(kind_or_name: str) -> Framework:
    """The framework of that kind (``PyTorchJob``), name or alias, in any letter case.

    Raises :class:`UsageError` with the nearest name where there is none, and
    :class:`BrokenFramework` where the package that has one by this name cannot be used.
    """
    wanted = kind_or_name.lower()
    for framework in _BUILT_IN:
        if wanted in _words(framework):
            return framework
    found = _installed()
    for entry in found:
        if entry.name.lower() == wanted:
            return _loaded(entry)
    return _by_kind(wanted, found) or _unknown(kind_or_name)


def frameworks() -> tuple[Framework, ...]:
    """All frameworks, danlu's own first, then others by name.

    Raises :class:`BrokenFramework` for a package that cannot be used, or that claims a name or
    kind somebody else has.
    """
    all = list(_BUILT_IN)
    for entry in _installed():
        framework = _loaded(entry)
        taken = next((one for one in all if _words(one) & _words(framework)), None)
        if taken is not None:
            reason = f"its name or kind is that of {taken.name} ({taken.kind}) already"
            raise _broken(entry, reason)
        all.append(framework)
    return tuple(all)


def framework_names() -> tuple[str, ...]:
    """The names of all frameworks, without loading any package's."""
    built_in = [framework.name for framework in _BUILT_IN]
    return tuple(dict.fromkeys([*built_in, *(entry.name for entry in _installed())]))


def _words(framework: Framework) -> frozenset[str]:
    """All that a framework may be called by, in small letters."""
    own = (framework.name, framework.kind, framework.plural, *framework.aliases)
    return frozenset(word.lower() for word in own)


def _installed() -> tuple[EntryPoint, ...]:
    return tuple(sorted(entry_points(group=GROUP), key=lambda one: (one.name, one.value)))


def _loaded(entry: EntryPoint) -> Framework:
    try:
        framework = entry.load()
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise _broken(entry, reason) from error
    if not isinstance(framework, Framework):
        raise _broken(entry, f"{entry.value} is not a Framework but a {type(framework).__name__}")
    return framework


def _broken(entry: EntryPoint, reason: str) -> BrokenFramework:
    package = entry.dist.name if entry.dist else "an unknown package"
    return BrokenFramework(
        f"the framework {entry.name} of the package {package} cannot be used: {reason}",
        hint=f"update {package}, or uninstall it",
    )


def _by_kind(wanted: str, found: tuple[EntryPoint, ...]) -> Framework | None:
    """The one of other packages' frameworks that has this kind or alias; broken ones have none."""
    return next((one for one in _usable(found) if wanted in _words(one)), None)


def _usable(found: tuple[EntryPoint, ...]) -> Iterator[Framework]:
    for entry in found:
        try:
            yield _loaded(entry)
        except BrokenFramework:
            continue


def _unknown(kind_or_name: str) -> NoReturn:
    import difflib

    kinds = [framework.kind for framework in _BUILT_IN]
    known = [*framework_names(), *kinds]
    by_word = {word.lower(): word for word in known}
    near = difflib.get_close_matches(kind_or_name.lower(), by_word, n=1)
    meant = f"did you mean {by_word[near[0]]}? " if near else ""
    raise UsageError(
        f"no framework is called {kind_or_name!r}",
        hint=f"{meant}There are {', '.join(framework_names())}",
        details=_failures(),
    )


def _failures() -> tuple[str, ...]:
    """What could not be used of the installed packages: the one that was meant may be there."""
    lines = []
    for entry in _installed():
        try:
            _loaded(entry)
        except BrokenFramework as error:
            lines.append(error.message)
    return tuple(lines)
