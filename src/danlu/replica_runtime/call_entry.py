"""Call a function on a replica: ``python call.py``, copied next to the files that the call needs.

``call.json`` describes the call, ``call.pickle`` holds the function and its arguments
(:mod:`danlu.submission.function_transport`). The return value, or what the function raises, is sent
back (see ``results.py``); a traceback also goes to stderr, like that of any program.
"""

import collections.abc
import importlib
import json
import os
import pickle
import sys
import traceback
from typing import Any

PROGRAM, MANIFEST, PAYLOAD = "call.py", "call.json", "call.pickle"

#: Directories with modules that come first and last on ``sys.path``.
FIRST, LAST = "first", "last"

#: The name of the function's value among the values of a replica.
VALUE_NAME = "value"

#: Set to the path of the user's script while it is imported: then it must not start a job.
IMPORTING = "DANLU_IMPORTING"

#: The name under which ``multiprocessing``, too, imports a program's main module again.
MAIN = "__mp_main__"

#: The rank of a process among those that a launcher started on a replica (torchrun, Open MPI,
#: MPICH); rank 0 returns the value.
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")

#: Modules of the package ``danlu_replica`` next to this program.
_results = None  # type: Any
_display = None  # type: Any
_termination = None  # type: Any


def minor_version() -> str:
    """Return the version of Python that pickled code depends on: ``3.11``."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


def main(directory: str) -> int:
    """Call the function and return the exit code: 1 if it raised."""
    _termination.unwind_on_sigterm()
    try:
        manifest = read_manifest(directory)
        _display.install()
        function, args, kwargs = load_call(directory, manifest)
        value = _await_result(function(*args, **kwargs))
        _display.flush_figures()
        return_value(value, manifest["limit"])
    except Exception as error:
        report_error(error)
        traceback.print_exc()
        return 1
    except KeyboardInterrupt:
        if _termination.was_terminated():
            return int(_termination.EXIT_TERMINATED)
        raise
    return 0


# -- before the call ------------------------------------------------------------------------------


def read_manifest(directory: str) -> "dict[str, Any]":
    """Read the description of the call."""
    with open(os.path.join(directory, MANIFEST), encoding="utf-8") as file:
        return dict(json.load(file))


def load_call(directory: str, manifest: "dict[str, Any]") -> "tuple[Any, Any, Any]":
    """Return the function, its arguments and its keyword arguments."""
    _check_python_version(manifest["python"])
    _set_search_path(directory, manifest)
    if manifest["main"]:
        _import_main(manifest["main"])
    with open(os.path.join(directory, PAYLOAD), "rb") as payload:
        function, args, kwargs = pickle.load(payload)
    return function, args, kwargs


def _check_python_version(writer: str) -> None:
    if writer != minor_version():
        raise RuntimeError(
            f"the function was pickled by Python {writer}, but this is Python {minor_version()}:"
            " use an environment with the same version, or run a script instead of a function"
        )


def _set_search_path(directory: str, manifest: "dict[str, Any]") -> None:
    """Set ``sys.path`` to the submitter's, in a container to the part that exists there."""
    if not manifest["contained"]:
        sys.path[:] = manifest["path"]
        return
    here = os.path.abspath(directory)
    others = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    first, last = os.path.join(directory, FIRST), os.path.join(directory, LAST)
    sys.path[:] = [first, *manifest["path"], *others, last]


def _import_main(path: str) -> None:
    """Import the user's script as ``__main__``, without the code guarded by ``__name__``."""
    # Imported late: not needed if the function comes from a module.
    import runpy
    import types

    module = types.ModuleType(MAIN)
    os.environ[IMPORTING] = path
    try:
        module.__dict__.update(runpy.run_path(path, run_name=MAIN))
    finally:
        del os.environ[IMPORTING]
    sys.modules["__main__"] = sys.modules[MAIN] = module


def _await_result(value: Any) -> Any:
    """Return ``value``, or the result of running it if it is a coroutine."""
    # Not inspect.iscoroutine: coroutines compiled by Cython or mypyc are of other types.
    if not isinstance(value, collections.abc.Coroutine):
        return value
    # Imported late: few functions are asynchronous.
    import asyncio

    # asyncio.run is new in Python 3.7.
    run = getattr(asyncio, "run", None) or asyncio.get_event_loop().run_until_complete
    return run(value)


# -- after the call -------------------------------------------------------------------------------


def return_value(value: object, limit: int) -> None:
    """Return the value if it is requested from this process."""
    if any(os.environ.get(name, "0") != "0" for name in LOCAL_RANKS) or not _results.wants_value():
        return
    try:
        _results.return_values({VALUE_NAME: value}, limit)
    except _results.pickles.NotSent as error:
        raise TypeError(f"cannot return the function's value: {error} ({error.hint})") from error
    except _results.NotDelivered as error:
        raise OSError(f"cannot return the function's value: {error}") from error


def report_error(error: BaseException) -> None:
    """Report an exception to the submitter."""
    if _results.can_report_error():
        text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        _results.report_error(_results.describe_error(error, text))


if __name__ == "__main__":
    _here = os.path.dirname(os.path.abspath(__file__))
    # Imported while this directory is on the path: load_call sets the user's.
    sys.path.insert(0, _here)
    _results = importlib.import_module("danlu_replica.results")
    _display = importlib.import_module("danlu_replica.display")
    _termination = importlib.import_module("danlu_replica.termination")
    _exit_process = importlib.import_module("danlu_replica.exit").exit_process
    sys.path.remove(_here)
    _exit_process(main(_here))
