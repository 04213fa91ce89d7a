"""A log file for every run: what was typed and all that happened, the last fifty kept."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["KEPT", "RunLog", "newest"]

#: How many log files stay.
KEPT = 50

_SUFFIX = ".log"


class RunLog:
    """The log file of one run, written a line at a time from any thread.

    A log that cannot be written must not fail the run: errors end the logging, silently.
    """

    def __init__(
        self,
        directory: Path,
        command: Sequence[str],
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._clock = clock
        self._begun = clock()
        self._lock = threading.Lock()
        self._descriptor = -1
        #: Where the log is, to be told to the user; None where none could be made.
        self.path: Path | None = None
        with suppress(OSError):
            self._open(directory)
        self.line("danlu " + " ".join(_quoted(word) for word in command))

    def _open(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._begun))
        # Sorted by name is sorted by time; the process keeps two of one second apart.
        path = directory / f"{stamp}-{os.getpid()}-{os.urandom(2).hex()}{_SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
        # Builds print what the user would not show everyone.
        self._descriptor = os.open(path, flags, 0o600)
        self.path = path
        _rotate(directory)

    def line(self, text: str) -> None:
        """Append ``text``, one or more lines, each with the seconds since the start."""
        seconds = self._clock() - self._begun
        data = "".join(f"{seconds:9.3f} {one}\n" for one in text.splitlines() or [""])
        with self._lock:
            if self._descriptor < 0:
                return
            try:
                os.write(self._descriptor, data.encode(errors="replace"))
            except OSError:
                self._shut()

    def close(self) -> None:
        """End the log; further lines are dropped."""
        with self._lock:
            self._shut()

    def _shut(self) -> None:
        if self._descriptor >= 0:
            with suppress(OSError):
                os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> RunLog:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _quoted(word: str) -> str:
    import shlex

    return shlex.quote(word)


def newest(directory: Path) -> list[Path]:
    """The log files, the newest first."""
    try:
        names = os.listdir(directory)
    except OSError:
        return []
    return [directory / name for name in sorted(names, reverse=True) if name.endswith(_SUFFIX)]


def _rotate(directory: Path) -> None:
    for path in newest(directory)[KEPT:]:
        with suppress(OSError):
            path.unlink()
