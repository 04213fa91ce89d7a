"""One log file a run (D12): what was asked, what happened, and how it failed."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

__all__ = ["RunLog", "redacted"]

_KEPT = 50

#: Options whose value may be a secret: only the part before ``=`` is written.
_SECRET = {"-e", "--env"}


def redacted(arguments: Sequence[str]) -> str:
    """A command line without values of variables and without what a program was given."""
    if "run" in arguments and "--" not in arguments:
        arguments = [*arguments[: list(arguments).index("run") + 1], "…"]
    shown: list[str] = []
    secret = False
    for index, argument in enumerate(arguments):
        if argument == "--":
            program = list(arguments[index + 1 : index + 2])
            shown += ["--", *program]
            if len(arguments) > index + 2:
                shown.append(f"… ({len(arguments) - index - 2} arguments)")
            break
        name, equals, _ = argument.partition("=")
        if secret and equals:
            shown.append(f"{name}=…")
        elif name == "--env" and equals:
            shown.append("--env=" + argument.split("=", 2)[1] + "=…")
        elif argument.startswith("-e") and len(argument) > 2 and equals:
            shown.append(f"{name}=…")
        else:
            shown.append(argument)
        secret = argument in _SECRET
    return " ".join(shown)


class RunLog:
    """The log file of this run, opened by its first line and readable by its owner only.

    A log that cannot be written is no reason to fail: then nothing is written.
    """

    def __init__(self, directory: Path, arguments: Sequence[str]) -> None:
        self._directory = directory
        self._arguments = tuple(arguments)
        self._started = time.time()
        self._file: TextIO | None = None
        self._refused = False
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._started))
        verb = next((one for one in arguments if one.isalpha()), "danlu")
        self.path = directory / f"{stamp}-{os.getpid()}-{verb[:16]}.log"

    @property
    def written(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def write(self, text: str) -> None:
        """Add ``text``, a line or several, with the seconds since the run began."""
        if self._file is None and not self._open():
            return
        assert self._file is not None
        try:
            self._file.write(f"{time.time() - self._started:9.3f} {text}\n")
            self._file.flush()
        except (OSError, ValueError):
            self._refused, self._file = True, None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._refused = True

    def _open(self) -> bool:
        if self._refused:
            return False
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self.path, flags, 0o600)
            self._file = os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace")
            self._forget_old()
        except OSError:
            self._refused = True
            return False
        from danlu import __version__

        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started))
        self._file.write(f"danlu {__version__}, {stamp}: {redacted(self._arguments)}\n")
        return True

    def _forget_old(self) -> None:
        names = sorted(one.name for one in os.scandir(self._directory) if one.name.endswith(".log"))
        for name in names[:-_KEPT]:
            (self._directory / name).unlink(missing_ok=True)
