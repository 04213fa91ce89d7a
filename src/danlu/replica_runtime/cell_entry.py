"""Run a cell on a replica, from the bundle that the notebook sent.

``manifest.json`` describes the bundle: the code, which runs as ``__main__``; local ``modules``; and
``values``, the pickled variables. Arguments ``--NAME VALUE`` set further variables. The variables
that the cell returns, or what it raises, are sent back (see ``results.py``).
"""

import ast
import builtins
import importlib.machinery
import importlib.util
import json
import keyword
import os
import pickle
import re
import sys
import sysconfig
import traceback
import types
from typing import Any

from . import display, encoding, pickles, results, termination
from .exit import exit_process as exit_process

#: The directory and the arguments of the running cell, for processes that it starts.
RUNNING, ARGUMENTS = "DANLU_CELL", "DANLU_CELL_ARGUMENTS"

#: The module that replaces ``__main__`` in such processes.
MAIN_MODULE = "danlu_cell"

#: torchrun's restart count, and the rank of a process in its launcher (torchrun, Open MPI, MPICH).
ROUND = "TORCHELASTIC_RESTART_COUNT"
RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


class ReceivedBundle:
    """The bundle as the replica finds it.

    ``is_nested`` is whether a parent process runs the same cell: then only the parent's results
    count.
    """

    def __init__(self, directory: str) -> None:
        self.directory = directory
        self.is_nested = os.environ.get(RUNNING) == directory
        with open(os.path.join(directory, "manifest.json"), encoding="utf-8") as file:
            self.manifest: dict[str, Any] = json.load(file)
        self.code = self.path(*self.manifest["code"].split("/"))

    def path(self, *names: str) -> str:
        """Return the path of a file in the bundle."""
        return os.path.join(self.directory, *names)


class CellError(Exception):
    """An error of the cell's options or environment, shown without a traceback."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def main(directory: str, arguments: "list[str]") -> int:
    """Run the cell and return the exit code: 1 if it raised, or what it passed to sys.exit."""
    termination.unwind_on_sigterm()
    bundle = ReceivedBundle(directory)
    os.environ[RUNNING], os.environ[ARGUMENTS] = bundle.directory, json.dumps(arguments)
    missing = change_directory(bundle)
    set_search_path(bundle)
    sys.modules["danlu_run"] = sys.modules["__main__"]
    module = sys.modules["__main__"] = create_main_module(bundle)
    try:
        if missing:
            raise CellError(missing, "start the notebook in a directory that the image has")
        module.__dict__.update(load_variables(bundle, arguments))
        if not bundle.is_nested:
            display.install()
        try:
            execute_code(bundle, module.__dict__)
        except SystemExit as stop:
            if stop.code not in (None, 0):
                raise
        display.flush_figures()
        if wants_variables(bundle):
            return_variables(bundle, module.__dict__)
    except BaseException as error:
        return report_failure(bundle, error)
    return 0


# -- before the code ------------------------------------------------------------------------------


def change_directory(bundle: ReceivedBundle) -> str:
    """Change to the notebook's directory if it is the same here; return why that is impossible."""
    directory = bundle.manifest.get("directory")
    try:
        if directory:
            os.chdir(directory)
    except OSError as error:
        return f"cannot use the notebook's directory {directory}: {error.strerror}"
    return ""


def set_search_path(bundle: ReceivedBundle) -> None:
    """Put the bundle's modules first on ``sys.path``, and order the rest as in a notebook."""
    path = [
        entry
        for entry in sys.path
        if os.path.abspath(entry or ".") != bundle.directory
        and not _is_main_module_directory(entry)
    ]
    standard = {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    standard |= {os.path.join(directory, "lib-dynload") for directory in standard if directory}
    after_standard = [number for number, entry in enumerate(path, 1) if entry in standard]
    # The working directory comes after the standard library, as in a kernel: a file `random.py`
    # there shadows nothing.
    path.insert(max(after_standard or [0]), os.getcwd())
    # `fallback` holds danlu.py, with danlu.report, for environments without danlu.
    sys.path[:] = [
        bundle.path("modules"),
        *path,
        bundle.path("spawned_main"),
        bundle.path("fallback"),
    ]
    entries = [entry for entry in os.environ.get("PYTHONPATH", "").split(os.pathsep) if entry]
    kept = [entry for entry in entries if not _is_main_module_directory(entry)]
    # For launchers that run `python -m` with the name of this program.
    os.environ["PYTHONPATH"] = os.pathsep.join([*kept, bundle.path("spawned_main")])


def _is_main_module_directory(directory: str) -> bool:
    """Return whether a directory holds the stand-in for ``__main__`` of any cell."""
    # Of any: if a cell starts a job itself, that job's replicas inherit the path.
    return os.path.isfile(os.path.join(directory, MAIN_MODULE + ".py"))


def create_main_module(bundle: ReceivedBundle) -> types.ModuleType:
    """Create a ``__main__`` whose file is the code, and which spawned processes can import."""
    module = types.ModuleType("__main__")
    loader = importlib.machinery.SourceFileLoader("__main__", bundle.code)
    spec = importlib.machinery.ModuleSpec(
        MAIN_MODULE, loader, origin=bundle.path("spawned_main", MAIN_MODULE + ".py")
    )
    attributes = {
        "__file__": bundle.code,
        "__loader__": loader,
        "__spec__": spec,
        "__package__": "",
    }
    module.__dict__.update(attributes, __builtins__=builtins)
    return module


def load_variables(bundle: ReceivedBundle, arguments: "list[str]") -> "dict[str, Any]":
    """Return the variables of the bundle and of the arguments; raises :class:`CellError`."""
    variables = _unpickle_variables(bundle)
    words = iter(arguments)
    for word in words:
        name, equals, value = word.partition("=")
        if not name.startswith("--"):
            raise CellError(f"unexpected argument {word}", "options are --NAME VALUE")
        variable = re.sub(r"\W", "_", name[2:])
        if not variable.isidentifier() or keyword.iskeyword(variable):
            raise CellError(f"{name} is not a valid variable name", "rename the option")
        variables[variable] = parse_literal(value if equals else next(words, ""))
    return variables


def parse_literal(text: str) -> Any:
    """Return the Python literal in ``text``, or ``text`` itself if it is none."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return text


def _unpickle_variables(bundle: ReceivedBundle) -> "dict[str, Any]":
    values = bundle.manifest["values"]
    _check_versions(values, bundle.manifest["python"])
    variables = {}
    for name, value in values.items():
        with open(bundle.path(*value["file"].split("/")), "rb") as file:
            data = file.read()
        try:
            variables[name] = pickle.loads(data)
        except Exception as error:
            reason = "".join(traceback.format_exception_only(type(error), error)).strip()
            raise CellError(
                f"cannot load {name} in the job's environment: {reason}",
                "create it in the cell, or send plain numbers, strings, lists and arrays",
            ) from error
    return variables


def _check_versions(values: "dict[str, Any]", writer: str) -> None:
    lines: dict[str, list[str]] = {}
    for name, value in values.items():
        conflicts = pickles.find_version_conflicts(writer, value["modules"], value["libraries"])
        for library, there, here in conflicts:
            line = f"{library}: {there} in the notebook, {here} in the job's environment"
            lines.setdefault(line, []).append(name)
    if lines:
        names = ", ".join(sorted({name for names in lines.values() for name in names}))
        raise CellError(
            "\n  ".join([f"cannot send {names} between different versions", *sorted(lines)]),
            "use an environment with the notebook's versions,"
            " or send plain numbers, strings and lists",
        )


# -- the code -------------------------------------------------------------------------------------


def execute_code(bundle: ReceivedBundle, namespace: "dict[str, Any]") -> None:
    """Run the code; its line numbers are those of the cell."""
    with open(bundle.code, "rb") as file:
        text = file.read().decode("utf-8")
    exec(compile(text, bundle.code, "exec", dont_inherit=True), namespace)


def run_as_spawned_main(directory: str, namespace: "dict[str, Any]") -> None:
    """Run the code as the ``__main__`` of a process that ``multiprocessing`` spawned."""
    bundle = ReceivedBundle(directory)
    for key in [key for key in namespace if not key.startswith("__")]:
        del namespace[key]
    arguments = json.loads(os.environ.get(ARGUMENTS, "[]"))
    namespace.update(load_variables(bundle, arguments), __file__=bundle.code)
    execute_code(bundle, namespace)


# -- after the code -------------------------------------------------------------------------------


def wants_variables(bundle: ReceivedBundle) -> bool:
    """Return whether this process, of all those on the replica, returns the variables."""
    if bundle.is_nested or not bundle.manifest["returns"] or not results.wants_value():
        return False
    return all(os.environ.get(name, "0") == "0" for name in RANKS)


def return_variables(bundle: ReceivedBundle, namespace: "dict[str, Any]") -> None:
    """Return the requested variables; raises :class:`CellError` if that is impossible."""
    requested = bundle.manifest["returns"]
    missing = [name for name in requested if name not in namespace]
    if missing and not bundle.manifest["every"]:
        raise CellError(
            f"cannot return {missing[0]}: the cell did not set it",
            _suggest_name(missing[0], namespace) or "set it on every path through the code",
        )
    values = {name: namespace[name] for name in requested if name in namespace}
    try:
        results.return_values(values, bundle.manifest["limit"])
    except pickles.NotSent as error:
        raise CellError(f"cannot return {error.name}: {error}", error.hint) from error
    except results.NotDelivered as error:
        raise CellError(
            f"cannot return {', '.join(values)}: {error}", "return less, or write it to a volume"
        ) from error


def _suggest_name(name: str, namespace: "dict[str, Any]") -> str:
    from difflib import get_close_matches  # imported late: only for this error

    known = [variable for variable in namespace if not variable.startswith("__")]
    near = get_close_matches(name, known, 1)
    return f"did you mean {near[0]}?" if near else ""


# -- errors ---------------------------------------------------------------------------------------


def report_failure(bundle: ReceivedBundle, error: BaseException) -> int:
    """Print an exception like Python does, report it to the notebook, and return the exit code."""
    if isinstance(error, KeyboardInterrupt) and termination.was_terminated():
        return termination.EXIT_TERMINATED
    if isinstance(error, SystemExit) and error.code is not None:
        code = error.code if isinstance(error.code, int) else 1
        if not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
        if code:
            send_error(bundle, error, format_error(bundle, error))
        return code
    if isinstance(error, CellError):
        lines = [f"danlu: {error}", *([f"hint: {error.hint}"] if error.hint else [])]
        text = "\n".join(lines) + "\n"
    else:
        text = format_error(bundle, error)
    send_error(bundle, error, text)
    if sys.excepthook is not sys.__excepthook__ and not isinstance(error, CellError):
        sys.excepthook(type(error), error, error.__traceback__)
    else:
        sys.stderr.write(text)
    return 130 if isinstance(error, KeyboardInterrupt) else 1


def format_error(bundle: ReceivedBundle, error: BaseException) -> str:
    """Format a traceback like Python does, without the frames of this package."""
    formatted = traceback.TracebackException(type(error), error, error.__traceback__)
    # Only of the exception itself: the code that raised its cause never passed through here.
    own_files = bundle.path("danlu_replica") + os.sep, bundle.path("run.py")
    formatted.stack[:] = [
        frame for frame in formatted.stack if not frame.filename.startswith(own_files)
    ]
    if isinstance(error, SyntaxError) and not formatted.stack:
        text = "".join(formatted.format_exception_only())
    else:
        text = "".join(formatted.format())
    text = text.replace(f'File "{bundle.code}"', "cell")
    return text.replace(f'File "{bundle.path("modules")}{os.sep}', 'File "')


def send_error(bundle: ReceivedBundle, error: BaseException, text: str) -> None:
    """Report an exception to the notebook, with its traceback and its line in the cell."""
    if bundle.is_nested or not results.can_report_error() or _is_consequence():
        return
    is_cell_error = isinstance(error, CellError)
    results.report_error(
        results.describe_error(
            error,
            text,
            line=None if is_cell_error else find_line(bundle, error),
            round=os.environ.get(ROUND, ""),
            refused=is_cell_error,
            hint=getattr(error, "hint", "") if is_cell_error else "",
        )
    )


def _is_consequence() -> bool:
    """Return whether another process of the same launcher has already reported an exception.

    The later exception is then most likely a consequence of the first.
    """
    path = os.environ.get(results.ERROR_FILE)
    if not path or not any(name in os.environ for name in RANKS):
        return False
    try:
        with open(path, "rb") as file:
            report = encoding.decode(file.read())
        return bool(report["round"] == os.environ.get(ROUND, ""))
    except (OSError, encoding.DecodeError):
        return False


def find_line(bundle: ReceivedBundle, error: BaseException) -> "int | None":
    """Return the last line of the cell that an exception passed through, counted from 1."""
    lines = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == bundle.code
    ]
    if isinstance(error, SyntaxError) and error.filename == bundle.code:
        lines.append(error.lineno or 0)
    return lines[-1] if lines else None
