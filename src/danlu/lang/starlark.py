"""Evaluate a ``build.envd`` with the Starlark interpreter; the only module that imports it.

The build functions become Starlark functions of a *preamble*; each reports its call with the
interpreter's call stack and returns. Their arguments are checked later, in
:mod:`danlu.lang.bind`. The interpreter knows files as ``<0>``, ``<1>`` …, so that its messages can
be parsed without ambiguity.

``include()`` must return Starlark functions, which a Python callback cannot. So the first call for
an unknown repository fetches it and restarts the evaluation with the repository's functions in the
preamble. Evaluation is hermetic, so it reaches the same call again.
"""

from __future__ import annotations

import os
import posixpath
import re
import resource
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from types import MappingProxyType
from typing import Any, NoReturn

import starlark
from msgspec.structs import replace

from danlu.environment.runtime_settings import DATA_SCHEME
from danlu.lang.arg_types import CallError, FunctionValue
from danlu.lang.bind import bind_arguments
from danlu.lang.build_parameters import Value, format_target
from danlu.lang.functions import FUNCTIONS
from danlu.lang.included_repository import (
    IncludedRepository,
    check_include_address,
    list_public_names,
    resolve_inner_path,
)
from danlu.lang.protocol import (
    CallFrame,
    EvaluationFailure,
    EvaluationLimits,
    EvaluationResult,
    FunctionCall,
    SourceCalls,
    SourceProvider,
)
from danlu.lang.source_files import normalize_newlines, replace_tabs
from danlu.lang.source_targets import SourceTarget, TooManyTargets, evaluate_source_targets
from danlu.lang.starlark_text import load_text, preamble_text, read_error, read_stack

_MAX_CALLS = 20_000
_MAX_INCLUDES = 64
_MAX_PRINTED = 64 * 1024
_EXPORTS = "danlu_exports"


class _MemoryMeter:
    """Measures the memory of this process; the peak, if the current size is not available."""

    def __init__(self) -> None:
        self._page = resource.getpagesize()
        try:
            self._statm: int | None = os.open("/proc/self/statm", os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._statm = None

    def __del__(self) -> None:
        if self._statm is not None:
            os.close(self._statm)

    def read_bytes(self) -> int:
        """Return the resident size in bytes."""
        if self._statm is None:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        return int(os.pread(self._statm, 200, 0).split()[1]) * self._page


class _StopEvaluation(Exception):
    """Leaves the interpreter; the failure is recorded."""


class _RestartEvaluation(Exception):
    """Leaves the interpreter because a repository was fetched."""


def evaluate_starlark(
    file: str,
    function: str,
    channel: SourceProvider,
    limits: EvaluationLimits,
    *,
    arguments: Mapping[str, Value] = MappingProxyType({}),
) -> EvaluationResult:
    """Evaluate a file, call one of its functions, and return the calls that were made.

    ``arguments`` are passed to the function by name. Errors of the file are part of the result;
    only what ``channel`` raises passes through.
    """
    repositories: list[IncludedRepository] = []
    waited = 0.0
    started = time.monotonic()
    memory = _MemoryMeter()
    while True:
        evaluation = _StarlarkEvaluation(channel, limits, repositories, started + waited, memory)
        try:
            evaluation.run_file(file, function, arguments)
        except _StopEvaluation:
            pass
        except _RestartEvaluation:
            waited += evaluation.waited
            continue
        return EvaluationResult(
            tuple(evaluation.calls),
            evaluation.failure,
            tuple(evaluation.printed),
            tuple(evaluation.sources),
        )


@cache
def _starlark_dialect() -> starlark.Dialect:
    dialect = starlark.Dialect.extended()
    dialect.enable_f_strings = True
    dialect.enable_top_level_stmt = True
    return dialect


@cache
def _starlark_globals() -> starlark.Globals:
    extension = starlark.LibraryExtension
    return starlark.Globals.extended_by(
        [extension.StructType, extension.CallStack, extension.Json, extension.Map, extension.Filter]
    )


class _StarlarkEvaluation:
    """One evaluation from the start. It succeeds, fails, or is restarted."""

    def __init__(
        self,
        channel: SourceProvider,
        limits: EvaluationLimits,
        repositories: list[IncludedRepository],
        started: float,
        memory: _MemoryMeter,
    ) -> None:
        self.calls: list[FunctionCall] = []
        self.sources: list[SourceCalls] = []
        self.printed: list[str] = []
        self.failure: EvaluationFailure | None = None
        self.waited = 0.0
        self._channel = channel
        self._limits = limits
        self._repositories = repositories
        self._started = started
        self._memory = memory
        self._initial_memory = memory.read_bytes()
        self._checks = 0
        self._printed = 0
        self._function = ""
        self._restart = False
        self._error: BaseException | None = None
        self._pending: tuple[str, str] | None = None
        self._cancelled = ""
        self._ids: dict[str, str] = {}
        self._files: list[str] = []
        self._owners: dict[str, int] = {}
        self._loaded: dict[str, starlark.FrozenModule | None] = {}
        self._exports: list[starlark.FrozenModule] = []
        self._options = starlark.EvalOptions(check_cancelled=self._check_limits)

    # -- the phases ---------------------------------------------------------------------------

    def run_file(self, file: str, function: str, arguments: Mapping[str, Value]) -> None:
        for index in range(len(self._repositories)):
            self._exports.append(self._evaluate_repository(index))
        text = self._ask_provider(self._channel.read, file)
        if text is None:
            self._stop_with(EvaluationFailure("nofile", file))
        preamble = self._make_preamble(len(self._repositories))
        module = self._make_module(preamble)
        self._loaded[file] = None
        self._run_text(module, file, text, partial(self._load_project_file, preamble, file))
        if not re.fullmatch(r"[A-Za-z_]\w*", function):
            self._stop_with(EvaluationFailure("missing", function))
        common = tuple(self.calls)
        self._call_function(module, function, arguments)

        def evaluate(target: SourceTarget) -> Sequence[FunctionCall]:
            own, printed, self.calls = self.calls, list(self.printed), []
            # A new module: a function may have changed the global lists of the first.
            fresh = self._make_module(preamble)
            self._run_text(fresh, file, text, partial(self._load_project_file, preamble, file))
            self.calls, self.printed = list(common), printed
            try:
                self._call_function(fresh, target.function, target.arguments)
            finally:
                found = tuple(self.calls)
                self.sources.append(SourceCalls(target.function, target.name, found))
                self.calls = own
            return found

        main = format_target(function, arguments)
        try:
            evaluate_source_targets(main, self.calls, normalize_newlines(text), evaluate)
        except TooManyTargets as error:
            self._stop_with(
                EvaluationFailure("invalid", error.message, error.hint, frames=error.call.frames)
            )

    def _call_function(
        self, module: starlark.Module, function: str, arguments: Mapping[str, Value]
    ) -> None:
        """Call a build function; give the functions among the recorded arguments their names."""
        kind = self._evaluate_text(module, "<kind>", f"type({function})")
        if kind != "function":
            self._stop_with(EvaluationFailure("missing", function))
        self._function = function
        call = format_target(function, arguments) if arguments else f"{function}()"
        self._evaluate_text(module, "<build>", f"{call}\nNone")
        for index, made in enumerate(self.calls):
            functions = {
                name: self._find_global(module, item.name)
                for name, item in made.kwargs.items()
                if isinstance(item, FunctionValue)
            }
            if functions:
                self.calls[index] = replace(made, kwargs={**made.kwargs, **functions})

    def _find_global(self, module: starlark.Module, text: str) -> FunctionValue:
        """Return the function that Starlark writes as ``text`` (``<0>.build``), if it is global."""
        name = text.rpartition(".")[2]
        if not name.isidentifier() or name == "lambda":
            return FunctionValue("")
        shown = self._evaluate_text(module, "<kind>", f"str({name})")
        return FunctionValue(name if shown == text else "")

    def _evaluate_repository(self, index: int) -> starlark.FrozenModule:
        """Evaluate all files of a repository and collect their public names in one struct."""
        repository = self._repositories[index]
        preamble = self._make_preamble(index)
        files = {posixpath.normpath(path): text for path, text in repository.files.items()}
        owners: dict[str, str] = {}
        exports = starlark.Module()
        for path in sorted(files):
            module = self._load_repository_file(preamble, index, files, path)
            for name in list_public_names(files[path]):
                if name in owners:
                    self._stop_with(
                        EvaluationFailure(
                            "invalid",
                            f"include(): {repository.url} defines '{name}' twice, in "
                            f"{owners[name]} and in {path}",
                        )
                    )
                owners[name] = path
            loader = starlark.FileLoader(_constant_loader(module))
            names = [name for name, owner in owners.items() if owner == path]
            for name in names:
                # public_names() may list names that no statement bound: those cannot be loaded.
                load = starlark.parse("<exports>", f'load("x", "{name}")', _starlark_dialect())
                try:
                    starlark.eval(exports, load, _starlark_globals(), loader)
                except starlark.StarlarkError:
                    del owners[name]
        struct = ", ".join(f"{name}={name}" for name in owners)
        self._evaluate_text(exports, "<exports>", f"{_EXPORTS} = struct({struct})\nNone")
        return exports.freeze()

    def _load_repository_file(
        self,
        preamble: starlark.FrozenModule,
        index: int,
        files: Mapping[str, str],
        path: str,
    ) -> starlark.FrozenModule:
        key = f"{self._repositories[index].url}/{path}"
        done = self._loaded.get(key)
        if done is not None:
            return done
        if key in self._loaded:
            raise self._reject_call(f"load(): '{path}' loads itself (circular load)")
        self._loaded[key] = None
        self._owners[key] = index

        def load(name: str) -> starlark.FrozenModule:
            target = resolve_inner_path(path, name)
            if target is None:
                raise self._reject_call(
                    f"load(): '{name}' is outside its repository",
                    "an included repository can only load its own files",
                )
            if target not in files:
                raise self._reject_call(f"load(): file '{target}' not found in the repository")
            return self._load_repository_file(preamble, index, files, target)

        module = self._make_module(preamble)
        self._run_text(module, key, files[path], load)
        frozen = module.freeze()
        self._loaded[key] = frozen
        return frozen

    def _load_project_file(
        self, preamble: starlark.FrozenModule, current: str, name: str
    ) -> starlark.FrozenModule:
        if posixpath.isabs(name) or "\0" in name or not name:
            raise self._reject_call(
                f"load(): invalid path '{name}'",
                "use a path relative to the file that loads it",
            )
        path = posixpath.normpath(posixpath.join(posixpath.dirname(current), name))
        if path == ".." or path.startswith("../"):
            raise self._reject_call(
                f"load(): '{name}' is outside the project",
                "copy the file into the project, or include() its repository",
            )
        done = self._loaded.get(path)
        if done is not None:
            return done
        if path in self._loaded:
            raise self._reject_call(f"load(): '{path}' loads itself (circular load)")
        # In progress: a file found in this state loads itself.
        self._loaded[path] = None
        text = self._ask_provider(self._channel.read, path)
        if text is None:
            raise self._reject_call(f"load(): file '{path}' not found")
        module = self._make_module(preamble)
        self._run_text(module, path, text, partial(self._load_project_file, preamble, path))
        frozen = module.freeze()
        self._loaded[path] = frozen
        return frozen

    # -- the preamble -------------------------------------------------------------------------

    def _make_preamble(self, repositories: int) -> starlark.FrozenModule:
        """Return a module with all functions; ``include`` knows the first ``repositories``."""
        module = starlark.Module()
        module.add_callable("_call", self._on_call)
        module.add_callable("_include", partial(self._on_include, repositories))
        module.add_callable("_print", self._on_print)
        names = []
        for index in range(repositories):
            names.append(f"_included_{index}")
            loader = starlark.FileLoader(_constant_loader(self._exports[index]))
            text = f'load("x", {names[-1]}="{_EXPORTS}")'
            starlark.eval(
                module,
                starlark.parse("<include>", text, _starlark_dialect()),
                _starlark_globals(),
                loader,
            )
        text = f"_included = [{', '.join(names)}]\n{preamble_text()}"
        starlark.eval(
            module, starlark.parse("<preamble>", text, _starlark_dialect()), _starlark_globals()
        )
        return module.freeze()

    def _make_module(self, preamble: starlark.FrozenModule) -> starlark.Module:
        module = starlark.Module()
        load = starlark.parse("<load>", load_text(), _starlark_dialect())
        starlark.eval(
            module, load, _starlark_globals(), starlark.FileLoader(_constant_loader(preamble))
        )
        return module

    def _on_call(
        self,
        name: str,
        stack: str,
        args: list[Any],
        kwargs: dict[str, Any],
        functions: dict[str, str],
    ) -> str | None:
        kwargs |= {key: FunctionValue(text) for key, text in functions.items()}
        self._record_call(FunctionCall(name, tuple(args), kwargs, read_stack(stack, self._ids)))
        if name != "data.envd":
            return None
        given = args[0] if args else kwargs.get("name", "")
        return f"{DATA_SCHEME}{given}"

    def _record_call(self, call: FunctionCall) -> None:
        self.calls.append(call)
        if len(self.calls) > _MAX_CALLS:
            raise self._reject_call(f"the file makes more than {_MAX_CALLS} calls")

    def _on_print(self, text: str) -> None:
        room = _MAX_PRINTED - self._printed
        if room > 0:
            self.printed.append(text[:room])
            self._printed += len(text) + 1

    def _on_include(self, known: int, stack: str, args: list[Any], kwargs: dict[str, Any]) -> int:
        frames = read_stack(stack, self._ids)
        try:
            values = bind_arguments(FUNCTIONS["include"], args, kwargs)
        except CallError:
            # Binding the recorded call raises the same error, with its location.
            self._record_call(FunctionCall("include", tuple(args), kwargs, frames))
            raise self._reject_call("include()") from None
        url, ref = str(values["url"]), str(values.get("ref", ""))
        for index, repository in enumerate(self._repositories):
            if (repository.url, repository.ref) == (url, ref):
                if index >= known:
                    raise self._reject_call(f"include(): {url} includes itself (circular include)")
                self._record_call(
                    FunctionCall("include", tuple(args), kwargs, frames, repository.commit)
                )
                return index
        requester = self._owners.get(frames[-1].file) if frames else None
        self._fetch_repository(url, ref, requester)
        self._restart = True
        raise _RestartEvaluation

    def _fetch_repository(self, url: str, ref: str, requester: int | None) -> None:
        problem = check_include_address(url, ref, from_repository=requester is not None)
        if problem:
            raise self._reject_call(*problem)
        if len(self._repositories) >= _MAX_INCLUDES:
            raise self._reject_call(f"the file includes more than {_MAX_INCLUDES} repositories")
        commit, files = self._ask_provider(partial(self._channel.include, url), ref)
        place = len(self._repositories) if requester is None else requester
        self._repositories.insert(place, IncludedRepository(url, ref, commit, files))

    # -- evaluation and its errors ------------------------------------------------------------

    def _ask_provider(self, question: Callable[[str], Any], argument: str) -> Any:
        started = time.monotonic()
        try:
            return question(argument)
        except BaseException as error:
            # The interpreter would turn it into text; keep it, to raise the original.
            self._error = error
            raise
        finally:
            taken = time.monotonic() - started
            self.waited += taken
            self._started += taken

    def _run_text(
        self,
        module: starlark.Module,
        file: str,
        text: str,
        load: Callable[[str], starlark.FrozenModule],
    ) -> None:
        identity = f"<{len(self._files)}>"
        self._ids[identity] = file
        self._files.append(file)
        # Ending with None avoids converting the value of the last expression to Python.
        self._evaluate_text(
            module, identity, f"{replace_tabs(normalize_newlines(text))}\nNone\n", load
        )

    def _evaluate_text(
        self,
        module: starlark.Module,
        identity: str,
        text: str,
        load: Callable[[str], starlark.FrozenModule] | None = None,
    ) -> object:
        try:
            tree = starlark.parse(identity, text, _starlark_dialect())
            loader = starlark.FileLoader(load) if load is not None else None
            return starlark.eval_with(
                self._options, module, tree, _starlark_globals(), file_loader=loader
            ).value
        except starlark.StarlarkError as error:
            if identity == "<kind>" and "not found" in str(error):
                return ""
            self._raise_failure(str(error))
        except (_StopEvaluation, _RestartEvaluation):
            raise
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            # Failed allocations panic: "out of memory", "AlignedSize must not …".
            file = self._ids.get(identity)
            self._stop_with(
                EvaluationFailure(
                    "memory", str(error), frames=(CallFrame(file, 1),) if file else ()
                )
            )

    def _raise_failure(self, text: str) -> NoReturn:
        """Raise what caused an interpreter error; ``text`` is its message."""
        if self._error is not None:
            raise self._error
        if self._restart:
            raise _RestartEvaluation
        if self.failure is not None:
            raise _StopEvaluation
        message, frames = read_error(text, self._ids)
        if not frames and message.startswith("Missing parameter"):
            # It is the call of the build function itself.
            self._stop_with(EvaluationFailure("missing", self._function))
        if self._cancelled:
            self._stop_with(EvaluationFailure(self._cancelled, message, frames=frames))
        if self._pending is not None:
            self._stop_with(EvaluationFailure("invalid", *self._pending, frames=frames))
        self._stop_with(EvaluationFailure("raw", message, frames=frames))

    def _stop_with(self, failure: EvaluationFailure) -> NoReturn:
        self.failure = failure
        raise _StopEvaluation

    def _reject_call(self, message: str, hint: str = "") -> Exception:
        """Return an exception to raise through the interpreter, which knows the location."""
        if self._pending is None:
            self._pending = (message, hint)
        return _StopEvaluation(message)

    def _check_limits(self) -> bool:
        """Return whether to stop. The interpreter calls it every 1,000 steps."""
        if time.monotonic() - self._started > self._limits.seconds:
            self._cancelled = "time"
        self._checks += 1
        if (
            self._checks % 8 == 0
            and self._memory.read_bytes() - self._initial_memory > self._limits.memory
        ):
            self._cancelled = "memory"
        return bool(self._cancelled)


def _constant_loader(module: starlark.FrozenModule) -> Callable[[str], starlark.FrozenModule]:
    return lambda _: module
