"""Evaluate one build function of a file, in either spelling, to an :class:`Environment`."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from danlu.environment.types import Environment
from danlu.lang.declare import declare
from danlu.lang.desk import Desk
from danlu.lang.limits import Limits
from danlu.lang.outcome import Outcome
from danlu.lang.sources import Sources, build_functions, definition
from danlu.lang.types import Loader

__all__ = ["evaluate", "functions"]


def evaluate(
    file: str, function: str = "build", *, loader: Loader, meanwhile: Iterable[object] = ()
) -> Environment:
    """Return what one function of a build file describes.

    ``file`` is the path that ``loader.read`` understands: a ``.py`` file is Python, any other is
    Starlark. Starlark runs in a child process with limits on time and memory; ``meanwhile`` is
    what this process has to do anyway, in small steps: as many are taken as there is time for
    until the child has ended, be it none. Raises :class:`BuildFileError` with its place for
    anything wrong in the file, and :class:`UsageError` where there is no such file; what the
    loader raises passes through.
    """
    sources = Sources()
    desk = Desk(loader, sources)
    if file.endswith(".py"):
        from danlu.lang.python import evaluate_python

        return evaluate_python(file, function, desk=desk, sources=sources)
    from danlu.lang.child import evaluate_in_child

    limits = Limits()
    outcome = evaluate_in_child(file, function, desk, limits, meanwhile=meanwhile)
    return conclude(outcome, file=file, function=function, sources=sources, limits=limits)


def conclude(
    outcome: Outcome, *, file: str, function: str, sources: Sources, limits: Limits
) -> Environment:
    """Return the environment of an evaluated Starlark file, or raise its first error.

    The calls are looked at first: a wrong one came before whatever ended the evaluation.
    """
    for text in outcome.printed:
        print(text, file=sys.stderr)
    environment = declare(
        outcome.calls,
        name=function,
        file=file,
        sources=sources,
        place=definition(file, function, sources),
        written_order=False,
    )
    if outcome.failure is not None:
        from danlu.lang.explain import explain

        raise explain(outcome.failure, file=file, function=function, sources=sources, limits=limits)
    return environment


def functions(file: str, loader: Loader) -> list[str]:
    """Return the names of a file's build functions, in their order; nothing is evaluated."""
    text = Desk(loader, Sources()).read(file)
    if text is None:
        from danlu.lang.explain import no_file

        raise no_file(file)
    return build_functions(text)
