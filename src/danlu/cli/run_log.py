"""The log file of a run: its command line, its events, and the traceback of its failure."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TextIO

from danlu import __version__
from danlu.util.urls import mask_credentials

_MAX_LOG_FILES = 50

#: Options whose value may be a secret: only the part before ``=`` is logged.
_SECRET_OPTIONS = {"-e", "--env"}


def redact_arguments(arguments: Sequence[str]) -> str:
    """Format a command line without values of variables and without a program's arguments."""
    if "run" in arguments and "--" not in arguments:
        arguments = [*arguments[: list(arguments).index("run") + 1], "…"]
    shown: list[str] = []
    is_value = False
    for index, argument in enumerate(arguments):
        if argument == "--":
            program = list(arguments[index + 1 : index + 2])
            shown += ["--", *program]
            if len(arguments) > index + 2:
                shown.append(f"… ({len(arguments) - index - 2} arguments)")
            break
        name, equals, _ = argument.partition("=")
        if is_value and equals:
            shown.append(f"{name}=…")
        elif name == "--env" and equals:
            shown.append("--env=" + argument.split("=", 2)[1] + "=…")
        elif argument.startswith("-e") and len(argument) > 2 and equals:
            shown.append(f"{name}=…")
        else:
            shown.append(argument)
        is_value = argument in _SECRET_OPTIONS
    return " ".join(shown)


class RunLog:
    """The log file of this run, created by its first line and readable by its owner only.

    A log that cannot be written does not fail the run.
    """

    def __init__(self, directory: Path, arguments: Sequence[str]) -> None:
        self._directory = directory
        self._arguments = tuple(arguments)
        self._started = time.time()
        self._file: TextIO | None = None
        self._disabled = False
        stamp = time.strftime("%Y%m%dT%H%M%S", time.gmtime(self._started))
        verb = next((argument for argument in arguments if argument.isalpha()), "danlu")
        self.path = directory / f"{stamp}-{os.getpid()}-{verb[:16]}.log"

    @property
    def exists(self) -> bool:
        """Whether there is a file."""
        return self._file is not None

    def write(self, text: str) -> None:
        """Append ``text``, one or several lines, with the seconds since the run started."""
        if self._file is None and not self._open_file():
            return
        assert self._file is not None
        try:
            self._file.write(f"{time.time() - self._started:9.3f} {mask_credentials(text)}\n")
            self._file.flush()
        except (OSError, ValueError):
            self._disabled, self._file = True, None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None
            self._disabled = True

    def _open_file(self) -> bool:
        if self._disabled:
            return False
        try:
            self._directory.mkdir(parents=True, exist_ok=True, mode=0o700)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self.path, flags, 0o600)
            self._file = os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace")
            self._remove_old_logs()
        except OSError:
            self._disabled = True
            return False
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self._started))
        self._file.write(f"danlu {__version__}, {stamp}: {redact_arguments(self._arguments)}\n")
        return True

    def _remove_old_logs(self) -> None:
        entries = os.scandir(self._directory)
        names = sorted(entry.name for entry in entries if entry.name.endswith(".log"))
        for name in names[:-_MAX_LOG_FILES]:
            (self._directory / name).unlink(missing_ok=True)
