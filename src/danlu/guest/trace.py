"""What a cell raised: as it is printed, and as the notebook is told."""

import os
import pickle
import time
import traceback
from typing import Any

from . import deliver, parcel
from .place import Place, Refused
from .versions import python

RAISED = "DANLU_RAISED_FILE"

#: Bytes of a traceback that travel at most, of the message in it, and of the pickled exception.
TEXT, MESSAGE, ERROR = 1 << 16, 1 << 12, 1 << 20

#: How often torchrun began anew; which of a launcher's processes this one is (torchrun, Open MPI,
#: MPICH).
ROUND = "TORCHELASTIC_RESTART_COUNT"
RANKS = ("LOCAL_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK")


def report(place: Place, error: BaseException) -> str:
    """The traceback as Python prints it, but with the cell's own lines, and nothing of this."""
    told = traceback.TracebackException(type(error), error, error.__traceback__)
    # Only of the exception itself: what it was raised from did not come by here.
    own = place.path("danlu_guest") + os.sep, place.path("run.py")
    told.stack[:] = [frame for frame in told.stack if not frame.filename.startswith(own)]
    if isinstance(error, SyntaxError) and not told.stack:
        text = "".join(told.format_exception_only())
    else:
        text = "".join(told.format())
    text = text.replace(f'File "{place.code}"', "cell")
    return text.replace(f'File "{place.path("modules")}{os.sep}', 'File "')


def note(place: Place, error: BaseException, text: str) -> None:
    """Tell the notebook what was raised: its text, its place, and itself if it can be pickled."""
    path = os.environ.get(RAISED, "")
    if not path and not deliver.is_possible():
        return
    if place.beneath or (path and _is_late(path)):
        return
    refused = isinstance(error, Refused)
    told = {
        "text": shortened(text),
        "type": type(error).__name__,
        "message": _message(error)[:MESSAGE],
        "line": None if refused else line_of(place, error),
        "time": time.time(),
        "round": os.environ.get(ROUND, ""),
        "refused": refused,
        "hint": getattr(error, "hint", "") if refused else "",
        "python": python(),
        "error": None if refused else _pickled(error),
    }
    if path:
        write(path, pickle.dumps(told, min(4, parcel.PROTOCOL)))
    else:
        deliver.note(told)


def _is_late(path: str) -> bool:
    """Whether another process of the same launcher raised before; the later is its consequence."""
    if not any(name in os.environ for name in RANKS):
        return False
    try:
        with open(path, "rb") as file:
            return bool(pickle.load(file)["round"] == os.environ.get(ROUND, ""))
    except (OSError, EOFError):
        return False


def _message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "its text cannot be had"


def line_of(place: Place, error: BaseException) -> "int | None":
    """The line of the cell that an exception came by last, counted from 1."""
    lines = [
        line
        for frame, line in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename == place.code
    ]
    if isinstance(error, SyntaxError) and error.filename == place.code:
        lines.append(error.lineno or 0)
    return lines[-1] if lines else None


def shortened(text: str) -> str:
    """A text of some kilobytes at most: its beginning and its end."""
    if len(text) <= TEXT:
        return text
    head, tail = text[: TEXT // 4], text[-3 * TEXT // 4 :]
    left = len(text) - len(head) - len(tail)
    return f"{head}\n… {left} characters are left out here; the log has them …\n{tail}"


def _pickled(error: BaseException) -> "dict[str, Any] | None":
    try:
        told = parcel.packed("error", error, most=ERROR, room=ERROR)
        pickle.loads(told["data"])
    except Exception:
        return None
    return told


def write(path: str, data: bytes) -> None:
    """Write a file whole or not at all."""
    with open(f"{path}.{os.getpid()}", "wb") as file:
        file.write(data)
    os.replace(f"{path}.{os.getpid()}", path)
