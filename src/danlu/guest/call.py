"""Call a function on a replica: ``python call.py``, beside what danlu.commands.shipping wrote.

``call.json`` says what it needs, ``call.pickle`` holds the function and its arguments. Its value is
pickled to the file that ``DANLU_VALUE_FILE`` names, which those replicas have whose value is asked
for, what it raises to that of ``DANLU_RAISED_FILE``; a traceback goes to stderr, as from any
program. A replica's Python may be as old as 3.6, so that nothing newer is used before it is known.
"""

import importlib
import json
import os
import pickle
import sys
import time
import traceback
from typing import Any

PROGRAM, ORDER, PAYLOAD = "call.py", "call.json", "call.pickle"
FIRST, LAST = "first", "last"
VALUE = "DANLU_VALUE_FILE"
RAISED = "DANLU_RAISED_FILE"

#: Set while the user's script is imported: it may not order a job then.
IMPORTING = "DANLU_IMPORTING"

#: How ``multiprocessing`` calls the main module of a program that is imported once more.
MAIN = "__mp_main__"

#: Which of the processes of one replica this is, where a launcher started several (torchrun, Open
#: MPI, MPICH): the first gives the value.
LOCAL_RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID")


#: How results are given back where nobody reads files of a replica (``deliver.py``), if so.
_deliver: Any = None


def python() -> str:
    """This Python, as pickles of code depend on it."""
    return f"{sys.version_info[0]}.{sys.version_info[1]}"


# -- what was sent --------------------------------------------------------------------------------


def load(directory: str) -> "tuple[Any, Any, Any]":
    """The function and its arguments: ``(function, args, kwargs)``."""
    with open(os.path.join(directory, ORDER), encoding="utf-8") as file:
        order = json.load(file)
    _compare(order["python"])
    _surround(directory, order)
    if order["main"]:
        _import_main(order["main"])
    with open(os.path.join(directory, PAYLOAD), "rb") as payload:
        function, args, kwargs = pickle.load(payload)
    return function, args, kwargs


def _compare(wrote: str) -> None:
    if wrote != python():
        raise RuntimeError(
            f"the function comes from Python {wrote}, and this is Python {python()}:"
            " give the job an environment with the same Python, or write a script for it"
        )


def _surround(directory: str, order: "dict[str, Any]") -> None:
    """Have modules found where the submitter has them, in a container as far as it sees them."""
    if not order["contained"]:
        sys.path[:] = order["path"]
        return
    own = [one for one in sys.path if os.path.abspath(one or ".") != os.path.abspath(directory)]
    first, last = os.path.join(directory, FIRST), os.path.join(directory, LAST)
    sys.path[:] = [first, *order["path"], *own, last]


def _import_main(path: str) -> None:
    """Make the user's script this program's ``__main__``, without what it guards by its name."""
    import runpy
    import types

    module = types.ModuleType(MAIN)
    os.environ[IMPORTING] = path
    try:
        module.__dict__.update(runpy.run_path(path, run_name=MAIN))
    finally:
        del os.environ[IMPORTING]
    sys.modules["__main__"] = sys.modules[MAIN] = module


# -- what is given back ---------------------------------------------------------------------------


def give(value: object) -> None:
    """Write the pickled value, where it is asked of this process."""
    path = os.environ.get(VALUE)
    if any(os.environ.get(name, "0") != "0" for name in LOCAL_RANKS):
        return
    if path:
        _write(path, _dumps(value))
    elif _deliver is not None and _deliver.asked():
        _deliver.value(_dumps(value))


def note(error: BaseException) -> None:
    """Tell what was raised: when, its text, and itself where it can be pickled."""
    path = os.environ.get(RAISED)
    if not path and (_deliver is None or not _deliver.is_possible()):
        return
    told = {
        "text": "".join(traceback.format_exception(type(error), error, error.__traceback__)),
        "type": type(error).__name__,
        "message": str(error),
        "line": None,
        "time": time.time(),
        "error": _error(error),
    }
    if path:
        _write(path, pickle.dumps(told, 4))
    else:
        _deliver.note(told)


def _error(error: BaseException) -> bytes:
    try:
        data = _dumps(error)
        pickle.loads(data)
    except Exception:
        return b""
    return data


def _dumps(value: object) -> bytes:
    try:
        pickler = importlib.import_module("cloudpickle")
    except ImportError:
        return pickle.dumps(value)
    return bytes(pickler.dumps(value))


def _write(path: str, data: bytes) -> None:
    """Write a file whole or not at all."""
    new = f"{path}.{os.getpid()}"
    with open(new, "wb") as file:
        file.write(data)
    os.replace(new, path)


def main(directory: str) -> int:
    """Call it; the exit code is 1 where it raised."""
    try:
        function, args, kwargs = load(directory)
        give(function(*args, **kwargs))
    except Exception as error:
        note(error)
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    _here = os.path.dirname(os.path.abspath(__file__))
    # Before the path is the user's.
    sys.path.insert(0, _here)
    _leave = importlib.import_module("danlu_leave").leave
    _deliver = importlib.import_module("danlu_deliver")
    sys.path.remove(_here)
    _leave(main(_here))
