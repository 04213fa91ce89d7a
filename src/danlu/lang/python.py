"""Evaluate a ``build.py``: run it in this process and record its calls of build functions.

It can import the project's other Python files, which are also read through the loader. It is the
user's own program, so its limits are wide: they only stop what would never end.
"""

from __future__ import annotations

import posixpath
import re
import resource
import signal
import sys
import threading
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import CodeType, MappingProxyType, ModuleType, TracebackType
from typing import Any

from danlu.environment.types import Environment
from danlu.errors import BuildFileError, DanluError
from danlu.lang.bind import declare_targets
from danlu.lang.build_parameters import Value, format_target
from danlu.lang.call_recorder import CallRecorder, locate_instruction
from danlu.lang.error_messages import missing_file_error, missing_function_error
from danlu.lang.functions import FUNCTIONS
from danlu.lang.protocol import (
    PYTHON_LIMITS,
    CallFrame,
    EvaluationLimits,
    FunctionCall,
    SourceCalls,
)
from danlu.lang.python_namespace import LANGUAGE, UnknownNameError
from danlu.lang.source_files import CachingLoader, SourceFiles, find_definition, normalize_newlines
from danlu.lang.source_targets import (
    SourceTarget,
    TooManyTargets,
    connect_sources,
    evaluate_source_targets,
)
from danlu.util.suggest import suggest_name

_MODULE = "__danlu__"


class _TimeLimitExceeded(BaseException):
    """The time limit was exceeded. No ``except Exception`` of the user's catches it."""


def evaluate_python(
    file: str,
    function: str,
    arguments: Mapping[str, Value] = MappingProxyType({}),
    *,
    loader: CachingLoader,
    sources: SourceFiles,
    limits: EvaluationLimits = PYTHON_LIMITS,
) -> Environment:
    """Return what a function of a ``build.py`` describes, with the steps in the order written."""
    text = loader.read(file)
    if text is None:
        raise missing_file_error(file)
    recorder = CallRecorder(loader, sources)
    recorder.files.add(file)
    code = _compile_file(file, normalize_newlines(text), sources)
    evaluated: list[SourceCalls] = []
    failure = _run_file(code, file, function, arguments, recorder, limits, evaluated)
    environments = declare_targets(evaluated, file=file, sources=sources, written_order=True)
    if failure is not None:
        raise failure
    return connect_sources(format_target(function, arguments), environments, sources)


def _compile_file(file: str, text: str, sources: SourceFiles) -> CodeType:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return compile(text, file, "exec", dont_inherit=True)
    except SyntaxError as error:
        raise _syntax_error(error, file, sources) from None
    except (ValueError, RecursionError, MemoryError) as error:
        span = sources.span(file, 1)
        raise sources.make_error(f"syntax error: {error}", span) from None


def _syntax_error(error: SyntaxError, file: str, sources: SourceFiles) -> BuildFileError:
    line = error.lineno or 1
    end = error.end_offset or 0 if error.end_lineno == line else 0
    span = sources.span(file, line, error.offset or 0, end)
    return sources.make_error(f"syntax error: {error.msg}", span)


def _run_file(
    code: CodeType,
    file: str,
    function: str,
    arguments: Mapping[str, Value],
    recorder: CallRecorder,
    limits: EvaluationLimits,
    evaluated: list[SourceCalls],
) -> DanluError | None:
    """Run the file, its function and those that it copies from; return the error if there is one.

    ``evaluated`` gets the calls of each function.
    """
    module = ModuleType(_MODULE)
    module.__file__ = file
    names = recorder.names = module.__dict__

    def evaluate(target: SourceTarget) -> Sequence[FunctionCall]:
        recorder.calls = list(common)
        try:
            _call_function(names, file, target.function, target.arguments, recorder.sources)
        finally:
            found = tuple(recorder.calls)
            evaluated.append(SourceCalls(target.function, target.name, found))
        return found

    try:
        with ExitStack() as stack:
            # dataclasses and pickle look up a module by its name.
            sys.modules[_MODULE] = module
            stack.callback(sys.modules.pop, _MODULE, None)
            stack.enter_context(recorder.activate())
            stack.enter_context(_project_imports(recorder, file))
            stack.enter_context(_resource_limits(limits))
            common: tuple[FunctionCall, ...] = ()
            main = SourceTarget(function, arguments)
            try:
                exec(code, names)
            except BaseException:
                evaluated.append(SourceCalls(function, main.name, tuple(recorder.calls)))
                raise
            common = tuple(recorder.calls)
            text = normalize_newlines(recorder.sources.text(file))
            evaluate_source_targets(main.name, evaluate(main), text, evaluate)
    except TooManyTargets as error:
        span = recorder.sources.call_span(error.call)
        return recorder.sources.make_error(error.message, span, hint=error.hint)
    except DanluError as error:
        return error
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:
        return _translate_error(error, file, recorder, limits)
    return None


def _call_function(
    names: dict[str, Any],
    file: str,
    function: str,
    arguments: Mapping[str, Value],
    sources: SourceFiles,
) -> None:
    found = names.get(function)
    code = getattr(found, "__code__", None)
    if not callable(found) or not isinstance(code, CodeType):
        raise missing_function_error(file, function, sources)
    names_without_default = [
        *code.co_varnames[: code.co_argcount - len(found.__defaults__ or ())],
        *code.co_varnames[code.co_argcount : code.co_argcount + code.co_kwonlyargcount],
    ]
    if set(names_without_default) - set(found.__kwdefaults__ or {}) - set(arguments):
        raise missing_function_error(file, function, sources)
    generator_or_coroutine = 0x20 | 0x80 | 0x200
    if code.co_flags & generator_or_coroutine:
        raise sources.make_error(
            f"'{function}' is a generator or coroutine, so calling it does nothing",
            find_definition(file, function, sources),
            hint=f"define it as def {function}(): …, without yield and async",
        )
    found(**arguments)


# -- modules of the project ----------------------------------------------------------------------


class _ProjectFinder(MetaPathFinder, Loader):
    """Finds modules among the project's files, after the standard library and danlu."""

    def __init__(self, recorder: CallRecorder, directory: str) -> None:
        self._recorder = recorder
        self._directory = directory
        self._texts: dict[str, str] = {}
        self.found: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        top = fullname.partition(".")[0]
        if top in sys.stdlib_module_names or top == "danlu":
            return None
        if "." in fullname and top not in self.found:
            return None
        base = posixpath.join(self._directory, *fullname.split("."))
        for file, package in ((f"{base}.py", False), (f"{base}/__init__.py", True)):
            text = self._recorder.loader.read(file)
            if text is not None:
                self._texts[fullname] = file
                self.found.append(fullname)
                self._recorder.files.add(file)
                return ModuleSpec(fullname, self, origin=file, is_package=package)
        return None

    def exec_module(self, module: ModuleType) -> None:
        file = self._texts[module.__name__]
        module.__file__ = file
        text = self._recorder.sources.text(file)
        exec(compile(normalize_newlines(text), file, "exec", dont_inherit=True), module.__dict__)


@contextmanager
def _project_imports(recorder: CallRecorder, file: str) -> Iterator[None]:
    """Make the project's files importable, and forget the imported modules afterwards."""
    finder = _ProjectFinder(recorder, posixpath.dirname(file))
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        sys.meta_path.remove(finder)
        for name in finder.found:
            sys.modules.pop(name, None)


# -- limits ---------------------------------------------------------------------------------------


@contextmanager
def _resource_limits(limits: EvaluationLimits) -> Iterator[None]:
    with ExitStack() as stack:
        stack.enter_context(_time_limit(limits.seconds))
        stack.enter_context(_memory_limit(limits.memory))
        yield


@contextmanager
def _time_limit(seconds: float) -> Iterator[None]:
    """Raise :class:`_TimeLimitExceeded` after ``seconds``; only where signals arrive, in the main
    thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def time_up(number: int, frame: object) -> None:
        raise _TimeLimitExceeded

    started = time.monotonic()
    handler = signal.signal(signal.SIGALRM, time_up)
    # Repeated every second: the file may catch BaseException.
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
    """Let allocations fail that exceed the present data size by more than ``memory`` bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    try:
        with open("/proc/self/statm", encoding="ascii") as statm:
            # The sixth field is data and stack in pages (proc(5)), which is what RLIMIT_DATA
            # counts.
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


def _translate_error(
    error: BaseException, file: str, recorder: CallRecorder, limits: EvaluationLimits
) -> BuildFileError:
    sources = recorder.sources
    if isinstance(error, SyntaxError) and error.filename in recorder.files:
        return _syntax_error(error, str(error.filename), sources)
    frames = _user_frames(error.__traceback__, recorder)
    if not frames:
        frames = [CallFrame(file, 1)]
    last = frames[-1]
    span = sources.span(last.file, last.line, last.column, last.end_column)
    message, hint = _describe_error(error, limits)
    return sources.make_error(message, span, hint=hint, callers=frames[:-1])


def _user_frames(traceback: TracebackType | None, recorder: CallRecorder) -> list[CallFrame]:
    frames = []
    while traceback is not None:
        code = traceback.tb_frame.f_code
        if code.co_filename in recorder.files:
            frames.append(
                locate_instruction(code, traceback.tb_lasti, traceback.tb_lineno, recorder.sources)
            )
        traceback = traceback.tb_next
    return frames


def _describe_error(error: BaseException, limits: EvaluationLimits) -> tuple[str, str]:
    if isinstance(error, UnknownNameError):
        return error.message, error.hint
    if isinstance(error, _TimeLimitExceeded):
        return f"the build file did not finish within {limits.seconds:g} s", "it was here"
    if isinstance(error, MemoryError):
        return (
            f"the build file needs more than {limits.memory >> 20} MiB of memory",
            "a value in it may grow without end",
        )
    if isinstance(error, RecursionError):
        return "maximum recursion depth exceeded", ""
    if isinstance(error, SystemExit):
        return "the build file called exit()", "raise an exception with the reason instead"
    wanted = re.match(r"cannot import name '(\w+)' from 'danlu'", str(error))
    if isinstance(error, ImportError) and wanted is not None:
        if wanted[1] in FUNCTIONS:
            return (
                f"{wanted[1]}() is available in build.envd files only",
                "import a Python file of the project, or write this one as build.envd",
            )
        return f"danlu has no '{wanted[1]}'", suggest_name(wanted[1], LANGUAGE, what="it has")
    text = str(error)
    name = type(error).__name__
    return (f"{name}: {text}" if text else name), ""
