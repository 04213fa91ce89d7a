"""Evaluate a build function of a ``build.envd`` or ``build.py`` to an :class:`Environment`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import MappingProxyType

from danlu.environment.types import Environment
from danlu.errors import UsageError
from danlu.lang.bind import declare_targets
from danlu.lang.build_parameters import Value, format_target
from danlu.lang.error_messages import translate_failure
from danlu.lang.protocol import EvaluationLimits, EvaluationResult, SourceCalls
from danlu.lang.source_files import CachingLoader, SourceFiles, SourceLoader
from danlu.lang.source_targets import connect_sources
from danlu.lang.subprocess_eval import evaluate_in_child, has_one_thread
from danlu.util.fork import run_in_child
from danlu.util.sanitize import strip_control_sequences


def evaluate(
    file: str,
    function: str = "build",
    *,
    arguments: Mapping[str, Value] = MappingProxyType({}),
    loader: SourceLoader,
    while_waiting: Callable[[], object] | None = None,
) -> Environment:
    """Return the environment that a function of a build file describes.

    ``arguments`` are passed to the function. ``file`` is passed to ``loader.read``; a ``.py`` file
    is Python, any other Starlark. Starlark runs in a child process with limits on time and memory,
    and ``while_waiting`` is called while it works. Raises :class:`BuildFileError` with a location
    for anything wrong in the file, and :class:`UsageError` if it does not exist; what the loader
    raises passes through.
    """
    sources = SourceFiles()
    provider = CachingLoader(loader, sources)
    if file.endswith(".py"):
        # Loaded for this language only: it makes the Python functions of the language.
        from danlu.lang.python import evaluate_python

        def work() -> Environment:
            return evaluate_python(file, function, arguments, loader=provider, sources=sources)

        # A process with threads cannot be forked safely: in a notebook the file runs in the kernel.
        if not has_one_thread():
            return work()
        provider.read(file)  # fail before a process is started if it cannot be read
        return run_in_child(work, died=partial(_early_exit_error, file), on_output=_show_output)

    limits = EvaluationLimits()
    outcome = evaluate_in_child(
        file, function, provider, limits, arguments=arguments, while_waiting=while_waiting
    )
    return build_environment(
        outcome,
        file=file,
        function=function,
        sources=sources,
        limits=limits,
        target=format_target(function, arguments),
    )


def _early_exit_error(file: str, code: int) -> UsageError:
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    return UsageError(
        f"{file} ended its process with {how} before the build function returned",
        hint="return from the build function, or raise an exception with the reason",
    )


def _show_output(data: bytes) -> None:
    """Print the output of a build file to stderr, without control sequences."""
    for line in data.decode("utf-8", "replace").splitlines(keepends=True):
        text = line.rstrip("\r\n")
        print(
            strip_control_sequences(text),
            end="\n" if text != line else "",
            file=sys.stderr,
            flush=True,
        )


def build_environment(
    outcome: EvaluationResult,
    *,
    file: str,
    function: str,
    sources: SourceFiles,
    limits: EvaluationLimits,
    target: str = "",
) -> Environment:
    """Return the environment of an evaluated Starlark file, or raise its first error.

    ``target`` is the function with its arguments. The calls are checked first: an invalid one came
    before the failure that ended the evaluation.
    """
    for text in outcome.printed:
        _show_output(f"{text}\n".encode())
    evaluated = (SourceCalls(function, target or function, outcome.calls), *outcome.sources)
    environments = declare_targets(evaluated, file=file, sources=sources, written_order=False)
    if outcome.failure is not None:
        raise translate_failure(
            outcome.failure, file=file, function=function, sources=sources, limits=limits
        )
    return connect_sources(target or function, environments, sources)
