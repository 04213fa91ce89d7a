"""Call a pickled function on a replica: ``python call.py DIRECTORY``.

``DIRECTORY/call.pickle`` holds what danlu.commands.shipping wrote. The value is pickled to the file
that ``DANLU_VALUE_FILE`` names, which the leader's environment has; an exception goes to a file
of its own below ``DIRECTORY/raised``, and its traceback to stderr, as from any program.
"""

from __future__ import annotations

import os
import pickle
import sys
import time
import traceback
from typing import Any

RAISED = "raised"
PAYLOAD = "call.pickle"
VALUE = "DANLU_VALUE_FILE"

#: Set while the user's script is imported: it may not order a job then.
IMPORTING = "DANLU_IMPORTING"

#: How ``multiprocessing`` calls the main module of a program that is imported once more.
MAIN = "__mp_main__"


def load(directory: str) -> Any:
    """The function and its arguments: ``(function, args, kwargs)``."""
    with open(os.path.join(directory, PAYLOAD), "rb") as file:
        header = pickle.load(file)
        sys.path[:] = header["path"]
        if header["main"]:
            _import_main(header["main"])
        return pickle.load(file)


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


def give(value: object, path: str) -> None:
    """Write the pickled value, whole or not at all."""
    data = _dumps(value)
    with open(f"{path}.new", "wb") as file:
        file.write(data)
    os.replace(f"{path}.new", path)


def _dumps(value: object) -> bytes:
    try:
        import cloudpickle  # type: ignore[import-not-found, unused-ignore]
    except ImportError:
        return pickle.dumps(value)
    data: bytes = cloudpickle.dumps(value)
    return data


def note(directory: str, error: BaseException) -> None:
    """Keep an exception for whoever called: when, its text, and itself where it can be pickled."""
    text = "".join(traceback.format_exception(error))
    try:
        pickled = pickle.dumps(error)
        pickle.loads(pickled)
    except Exception:
        pickled = b""
    raised = os.path.join(directory, RAISED)
    os.makedirs(raised, exist_ok=True)
    path = os.path.join(raised, f"{time.time_ns():020}-{os.getpid()}")
    with open(f"{path}.new", "wb") as file:
        pickle.dump({"text": text, "error": pickled}, file)
    os.replace(f"{path}.new", path)


def main(directory: str) -> int:
    """Call it; the exit code is 1 where it raised."""
    try:
        function, args, kwargs = load(directory)
        value = function(*args, **kwargs)
        if VALUE in os.environ:
            give(value, os.environ[VALUE])
    except Exception as error:
        note(directory, error)
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
