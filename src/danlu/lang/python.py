"""Evaluate a ``build.py``: ordinary Python, run in this process, whose calls are recorded.

It may import the project's other Python files, which are read through the loader too. It is the
user's own program, so its limits are wide and only there to end what never would.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import CodeType, ModuleType, TracebackType
from typing import Any

from danlu.environment.types import Environment
from danlu.errors import BuildFileError, DanluError
from danlu.lang.calls import Frame
from danlu.lang.declare import declare
from danlu.lang.desk import Desk
from danlu.lang.explain import missing_function, no_file
from danlu.lang.finding import suggestion
from danlu.lang.limits import PYTHON_LIMITS, Limits
from danlu.lang.project_imports import project_imports
from danlu.lang.recorder import Recorder, place
from danlu.lang.sources import Sources, clean, definition

__all__ = ["evaluate_python"]


_MODULE = "__danlu__"


class _TimeUp(BaseException):
    """The time is up; no ``except Exception`` of the user's stops it."""


def evaluate_python(
    file: str, function: str, *, desk: Desk, sources: Sources, limits: Limits = PYTHON_LIMITS
) -> Environment:
    """Return what a function of a ``build.py`` describes; steps are in the order written."""
    text = desk.read(file)
    if text is None:
        raise no_file(file)
    recorder = Recorder(desk, sources)
    recorder.files.add(file)
    failure = _run(_compile(file, clean(text), sources), file, function, recorder, limits)
    environment = declare(
        recorder.calls,
        name=function,
        file=file,
        sources=sources,
        place=definition(file, function, sources),
        written_order=True,
    )
    if failure is not None:
        raise failure
    return environment


def _compile(file: str, text: str, sources: Sources) -> CodeType:
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(text, file, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _syntax_error(error, file, sources) from None
    except (ValueError, RecursionError, MemoryError) as error:
        span = sources.span(file, 1)
        raise sources.error(f"syntax error: {error}", span) from None


def _syntax_error(error: SyntaxError, file: str, sources: Sources) -> BuildFileError:
    line = error.lineno or 1
    end = error.end_offset or 0 if error.end_lineno == line else 0
    span = sources.span(file, line, error.offset or 0, end)
    return sources.error(f"syntax error: {error.msg}", span)


def _run(
    code: CodeType, file: str, function: str, recorder: Recorder, limits: Limits
) -> DanluError | None:
    """Run the file and its function; return what went wrong."""
    module = ModuleType(_MODULE)
    module.__file__ = file
    names = module.__dict__
    try:
        with ExitStack() as stack:
            # dataclasses, pickle and their like look a module up by its name.
            sys.modules[_MODULE] = module
            stack.callback(sys.modules.pop, _MODULE, None)
            stack.enter_context(recorder.listening())
            stack.enter_context(project_imports(recorder, file))
            stack.enter_context(_limited(limits))
            exec(code, names)
            _call_function(names, file, function, recorder.sources)
    except DanluError as error:
        return error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        return _translate(error, file, recorder, limits)
    return None


def _call_function(names: dict[str, Any], file: str, function: str, sources: Sources) -> None:
    found = names.get(function)
    code = getattr(found, "__code__", None)
    if not callable(found) or not isinstance(code, CodeType):
        raise missing_function(file, function, sources)
    required = code.co_argcount - len(found.__defaults__ or ())
    keyword_only = code.co_kwonlyargcount - len(found.__kwdefaults__ or {})
    if required > 0 or keyword_only > 0:
        raise missing_function(file, function, sources)
    generator_or_coroutine = 0x20 | 0x80 | 0x200
    if code.co_flags & generator_or_coroutine:
        raise sources.error(
            f"'{function}' is a generator or a coroutine, so calling it does nothing",
            definition(file, function, sources),
            hint=f"write: def {function}(): … without yield and async",
        )
    found()


# -- limits ---------------------------------------------------------------------------------------


@contextmanager
def _limited(limits: Limits) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(_time_limit(limits.seconds))
        stack.enter_context(_memory_limit(limits.memory))
        yield


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`_TimeUp` after ``seconds``; only where signals arrive, in the main thread."""
    import signal
    import threading
    import time

    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def time_up(number: int, frame: object) -> None:
        raise _TimeUp

    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, time_up)
    # Again every second: a file may catch everything.
    before, interval = signal.setitimer(signal.ITIMER_REAL, seconds, 1.0)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        if before:
            left = max(before - (time.monotonic() - started), 0.001)
            signal.setitimer(signal.ITIMER_REAL, left, interval)


@contextmanager
def _memory_limit(memory: int) -> Iterator[None]:
    """Let allocations fail beyond ``memory`` more bytes of data than this process has now."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            held = int(statm.read().split()[5]) * resource.getpagesize()
        limit = held + memory
        fits = (soft == resource.RLIM_INFINITY or limit < soft) and (
            hard == resource.RLIM_INFINITY or limit <= hard
        )
    except OSError:
        fits = False
    if fits:
        resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    try:
        yield
    finally:
        if fits:
            resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


# -- what the user's code raised ------------------------------------------------------------------


def _translate(
    error: BaseException, file: str, recorder: Recorder, limits: Limits
) -> BuildFileError:
    sources = recorder.sources
    if isinstance(error, SyntaxError) and error.filename in recorder.files:
        return _syntax_error(error, str(error.filename), sources)
    frames = _frames(error.__traceback__, recorder)
    if not frames:
        frames = [Frame(file, 1)]
    last = frames[-1]
    span = sources.span(last.file, last.line, last.column, last.end_column)
    message, hint = _words(error, limits)
    return sources.error(message, span, hint=hint, callers=frames[:-1])


def _frames(traceback: TracebackType | None, recorder: Recorder) -> list[Frame]:
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename in recorder.files:
            frames.append(place(code, traceback.tb_lasti, traceback.tb_lineno, recorder.sources))
        traceback = traceback.tb_next
    return frames


def _words(error: BaseException, limits: Limits) -> tuple[str, str]:
    from danlu.lang.api import LANGUAGE, UnknownName

    if isinstance(error, UnknownName):
        return error.message, error.hint
    if isinstance(error, _TimeUp):
        return f"the build file did not end within {limits.seconds:g} s", "it loops here"
    if isinstance(error, MemoryError):
        return (
            f"the build file needs more than {limits.memory >> 20} MiB of memory",
            "something in it grows for ever",
        )
    if isinstance(error, RecursionError):
        return "functions call each other for ever, or nearly so", ""
    if isinstance(error, SystemExit):
        return "the build file ends the program", "raise an exception with the reason instead"
    wanted = re.match(r"cannot import name '(\w+)' from 'danlu'", str(error))
    if isinstance(error, ImportError) and wanted is not None:
        return f"danlu has no '{wanted[1]}'", suggestion(wanted[1], LANGUAGE, what="it has")
    text = str(error)
    name = type(error).__name__
    return (f"{name}: {text}" if text else name), ""
