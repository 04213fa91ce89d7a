"""Evaluate a ``build.envd`` with the Starlark interpreter: the only module that knows it.

The functions of the table become Starlark functions of a *preamble*; each reports its call with
the interpreter's call stack and returns. Checking is done elsewhere. Files are known to the
interpreter as ``<0>``, ``<1>`` …, so that its texts can be read without guessing.

A call of ``include()`` must return Starlark functions, which a Python function cannot return. So
the first call of an unknown repository fetches it and starts the evaluation again, with the
repository's functions in the preamble. Evaluation is hermetic: it takes the same way again.
"""

from __future__ import annotations

import posixpath
import re
import time
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, NoReturn

import starlark

from danlu.lang.bind import bind
from danlu.lang.calls import Call, Frame
from danlu.lang.entries.data import DATA_SCHEME
from danlu.lang.finding import Finding
from danlu.lang.limits import Limits
from danlu.lang.memory import Memory
from danlu.lang.outcome import Channel, Failure, Outcome
from danlu.lang.preamble import load_text, preamble_text
from danlu.lang.repository import Repository, inner_path, public_names, refused_address
from danlu.lang.sources import clean, without_tabs
from danlu.lang.starlark_text import read_error, read_stack
from danlu.lang.table import TABLE

__all__ = ["run"]

_MAX_CALLS = 20_000
_MAX_INCLUDES = 64
_MAX_PRINTED = 64 * 1024
_EXPORTS = "danlu_exports"


class _Stop(Exception):
    """The failure is known; leave the interpreter."""


class _Again(Exception):
    """A repository was fetched; evaluate again."""


def run(
    file: str, function: str, channel: Channel, limits: Limits, *, value: bool = False
) -> Outcome:
    """Evaluate a file, call one of its functions, and report what was called.

    With ``value`` what it returns is reported too, and must be plain.

    Nothing that a file contains raises; only what ``channel`` raises passes through.
    """
    repositories: list[Repository] = []
    waited = 0.0
    started = time.monotonic()
    memory = Memory()
    while True:
        evaluation = _Evaluation(channel, limits, repositories, started + waited, memory)
        try:
            evaluation.build(file, function, value=value)
        except _Stop:
            pass
        except _Again:
            waited += evaluation.waited
            continue
        return Outcome(
            tuple(evaluation.calls),
            evaluation.failure,
            tuple(evaluation.printed),
            evaluation.value,
        )


@cache
def _dialect() -> starlark.Dialect:
    dialect = starlark.Dialect.extended()
    dialect.enable_f_strings = True
    dialect.enable_top_level_stmt = True
    return dialect


@cache
def _globals() -> starlark.Globals:
    extension = starlark.LibraryExtension
    return starlark.Globals.extended_by(
        [extension.StructType, extension.CallStack, extension.Json, extension.Map, extension.Filter]
    )


class _Evaluation:
    """One evaluation from the start; it ends well, with a failure, or for another start."""

    def __init__(
        self,
        channel: Channel,
        limits: Limits,
        repositories: list[Repository],
        started: float,
        memory: Memory,
    ) -> None:
        self.calls: list[Call] = []
        self.printed: list[str] = []
        self.failure: Failure | None = None
        self.waited = 0.0
        self.value: object = None
        self._channel = channel
        self._limits = limits
        self._repositories = repositories
        self._started = started
        self._memory = memory
        self._held = memory.held()
        self._checks = 0
        self._printed = 0
        self._function = ""
        self._again = False
        self._error: BaseException | None = None
        self._pending: tuple[str, str] | None = None
        self._cancelled = ""
        self._ids: dict[str, str] = {}
        self._files: list[str] = []
        self._owners: dict[str, int] = {}
        self._loaded: dict[str, starlark.FrozenModule | None] = {}
        self._exports: list[starlark.FrozenModule] = []
        self._options = starlark.EvalOptions(check_cancelled=self._check)

    # -- the phases ---------------------------------------------------------------------------

    def build(self, file: str, function: str, *, value: bool) -> None:
        for index in range(len(self._repositories)):
            self._exports.append(self._repository(index))
        text = self._ask(self._channel.read, file)
        if text is None:
            self._fail(Failure("nofile", file))
        preamble = self._preamble(len(self._repositories))
        module = self._module(preamble)
        self._loaded[file] = None
        self._run_text(module, file, text, partial(self._load, preamble, file))
        if not re.fullmatch(r"[A-Za-z_]\w*", function):
            self._fail(Failure("missing", function))
        kind = self._eval(module, "<kind>", f"type({function})")
        if kind != "function":
            self._fail(Failure("missing", function))
        self._function = function
        call = f"{function}()"
        self.value = self._eval(module, "<build>", call if value else f"{call}\nNone")

    def _repository(self, index: int) -> starlark.FrozenModule:
        """Evaluate all files of a repository and gather their public names in one struct."""
        repository = self._repositories[index]
        preamble = self._preamble(index)
        files = {posixpath.normpath(path): text for path, text in repository.files.items()}
        owners: dict[str, str] = {}
        exports = starlark.Module()
        for path in sorted(files):
            module = self._stranger(preamble, index, files, path)
            for name in public_names(files[path]):
                if name in owners:
                    self._fail(
                        Failure(
                            "ours",
                            f"include(): {repository.url} defines '{name}' twice, in "
                            f"{owners[name]} and in {path}",
                        )
                    )
                owners[name] = path
            loader = starlark.FileLoader(_always(module))
            names = [name for name, owner in owners.items() if owner == path]
            for name in names:
                # A name that no statement bound in the end cannot be loaded; it is not there.
                load = starlark.parse("<exports>", f'load("x", "{name}")', _dialect())
                try:
                    starlark.eval(exports, load, _globals(), loader)
                except starlark.StarlarkError:
                    del owners[name]
        struct = ", ".join(f"{name}={name}" for name in owners)
        self._eval(exports, "<exports>", f"{_EXPORTS} = struct({struct})\nNone")
        return exports.freeze()

    def _stranger(
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
            raise self._refuse(f"load(): '{path}' loads itself, in a circle")
        self._loaded[key] = None
        self._owners[key] = index

        def load(name: str) -> starlark.FrozenModule:
            target = inner_path(path, name)
            if target is None:
                raise self._refuse(
                    f"load(): '{name}' is outside its repository",
                    "an included repository can load its own files only",
                )
            if target not in files:
                raise self._refuse(f"load(): the repository has no file '{target}'")
            return self._stranger(preamble, index, files, target)

        module = self._module(preamble)
        self._run_text(module, key, files[path], load)
        frozen = module.freeze()
        self._loaded[key] = frozen
        return frozen

    def _load(
        self, preamble: starlark.FrozenModule, current: str, name: str
    ) -> starlark.FrozenModule:
        if posixpath.isabs(name) or "\0" in name or not name:
            raise self._refuse(
                f"load(): '{name}' is no path in the project",
                "a path is relative to the file that loads it",
            )
        path = posixpath.normpath(posixpath.join(posixpath.dirname(current), name))
        done = self._loaded.get(path)
        if done is not None:
            return done
        if path in self._loaded:
            raise self._refuse(f"load(): '{path}' loads itself, in a circle")
        self._loaded[path] = None
        text = self._ask(self._channel.read, path)
        if text is None:
            raise self._refuse(f"load(): there is no file '{path}'")
        module = self._module(preamble)
        self._run_text(module, path, text, partial(self._load, preamble, path))
        frozen = module.freeze()
        self._loaded[path] = frozen
        return frozen

    # -- the preamble -------------------------------------------------------------------------

    def _preamble(self, repositories: int) -> starlark.FrozenModule:
        """Return a module with all functions; ``include`` knows the first ``repositories``."""
        module = starlark.Module()
        module.add_callable("_call", self._call)
        module.add_callable("_include", partial(self._include, repositories))
        module.add_callable("_print", self._print)
        names = []
        for index in range(repositories):
            names.append(f"_included_{index}")
            loader = starlark.FileLoader(_always(self._exports[index]))
            text = f'load("x", {names[-1]}="{_EXPORTS}")'
            starlark.eval(module, starlark.parse("<include>", text, _dialect()), _globals(), loader)
        text = f"_included = [{', '.join(names)}]\n{preamble_text()}"
        starlark.eval(module, starlark.parse("<preamble>", text, _dialect()), _globals())
        return module.freeze()

    def _module(self, preamble: starlark.FrozenModule) -> starlark.Module:
        module = starlark.Module()
        load = starlark.parse("<load>", load_text(), _dialect())
        starlark.eval(module, load, _globals(), starlark.FileLoader(_always(preamble)))
        return module

    def _call(self, name: str, stack: str, args: list[Any], kwargs: dict[str, Any]) -> str | None:
        self._record(Call(name, tuple(args), kwargs, read_stack(stack, self._ids)))
        if name != "data.envd":
            return None
        given = args[0] if args else kwargs.get("name", "")
        return f"{DATA_SCHEME}{given}"

    def _record(self, call: Call) -> None:
        self.calls.append(call)
        if len(self.calls) > _MAX_CALLS:
            raise self._refuse(f"the file makes more than {_MAX_CALLS} calls")

    def _print(self, text: str) -> None:
        room = _MAX_PRINTED - self._printed
        if room > 0:
            self.printed.append(text[:room])
            self._printed += len(text) + 1

    def _include(self, known: int, stack: str, args: list[Any], kwargs: dict[str, Any]) -> int:
        frames = read_stack(stack, self._ids)
        try:
            values = bind(TABLE["include"], args, kwargs)
        except Finding:
            # Reported when the call is bound again, with its place.
            self._record(Call("include", tuple(args), kwargs, frames))
            raise self._refuse("include()") from None
        url, ref = str(values["url"]), str(values.get("ref", ""))
        for index, repository in enumerate(self._repositories):
            if (repository.url, repository.ref) == (url, ref):
                if index >= known:
                    raise self._refuse(f"include(): {url} includes itself, in a circle")
                self._record(Call("include", tuple(args), kwargs, frames, repository.commit))
                return index
        requester = self._owners.get(frames[-1].file) if frames else None
        self._fetch(url, ref, requester)
        self._again = True
        raise _Again

    def _fetch(self, url: str, ref: str, requester: int | None) -> None:
        problem = refused_address(url, ref, stranger=requester is not None)
        if problem:
            raise self._refuse(*problem)
        if len(self._repositories) >= _MAX_INCLUDES:
            raise self._refuse(f"more than {_MAX_INCLUDES} repositories are included")
        commit, files = self._ask(partial(self._channel.include, url), ref)
        place = len(self._repositories) if requester is None else requester
        self._repositories.insert(place, Repository(url, ref, commit, files))

    # -- evaluation and its errors ------------------------------------------------------------

    def _ask(self, question: Callable[[str], Any], argument: str) -> Any:
        started = time.monotonic()
        try:
            return question(argument)
        except BaseException as error:
            # It would leave the interpreter as text; kept, to be raised as it was.
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
        # The value of a file's last expression would be turned into a Python value.
        self._eval(module, identity, f"{without_tabs(clean(text))}\nNone\n", load)

    def _eval(
        self,
        module: starlark.Module,
        identity: str,
        text: str,
        load: Callable[[str], starlark.FrozenModule] | None = None,
    ) -> object:
        try:
            tree = starlark.parse(identity, text, _dialect())
            loader = starlark.FileLoader(load) if load is not None else None
            return starlark.eval_with(
                self._options, module, tree, _globals(), file_loader=loader
            ).value
        except starlark.StarlarkError as error:
            if identity == "<kind>" and "not found" in str(error):
                return ""
            self._explain(str(error))
        except (_Stop, _Again):
            raise
        except BaseException as error:
            if type(error).__name__ != "PanicException":
                raise
            # The interpreter's allocations end so: "out of memory", "AlignedSize must not …".
            file = self._ids.get(identity)
            self._fail(Failure("memory", str(error), frames=(Frame(file, 1),) if file else ()))

    def _explain(self, text: str) -> NoReturn:
        """Leave in the way that the cause asks for; ``text`` is what the interpreter says."""
        if self._error is not None:
            raise self._error
        if self._again:
            raise _Again
        if self.failure is not None:
            raise _Stop
        message, frames = read_error(text, self._ids)
        if not frames and message.startswith("Missing parameter"):
            # The call of the build function itself.
            self._fail(Failure("missing", self._function))
        if self._cancelled:
            self._fail(Failure(self._cancelled, message, frames=frames))
        if self._pending is not None:
            self._fail(Failure("ours", *self._pending, frames=frames))
        self._fail(Failure("raw", message, frames=frames))

    def _fail(self, failure: Failure) -> NoReturn:
        self.failure = failure
        raise _Stop

    def _refuse(self, message: str, hint: str = "") -> Exception:
        """Note a failure whose place only the interpreter knows; to be raised through it."""
        if self._pending is None:
            self._pending = (message, hint)
        return _Stop(message)

    def _check(self) -> bool:
        """Say whether to stop; the interpreter asks every 1,000 steps."""
        if time.monotonic() - self._started > self._limits.seconds:
            self._cancelled = "time"
        self._checks += 1
        if self._checks % 8 == 0 and self._memory.held() - self._held > self._limits.memory:
            self._cancelled = "memory"
        return bool(self._cancelled)


def _always(module: starlark.FrozenModule) -> Callable[[str], starlark.FrozenModule]:
    return lambda _: module
