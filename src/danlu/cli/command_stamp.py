"""Stamps of commands: what a repeated one answers, without loading the program.

A build without changes spends most of its time importing modules. It leaves a stamp that lists the
files it depends on, and the same command line is answered from the stamp as long as these files,
the store and the boot of the machine are the same; so does `danlu up` of a running environment. In
doubt, the program runs: this module only ever decides that nothing changed, and imports as little
as possible.

Files are compared by ``stat``, as in git's index, including git's rule for files that changed too
recently to tell ("racy git"). Removing anything from the store increments its epoch.
"""

from __future__ import annotations

import marshal
import os
import sys
import time
import zlib

from danlu import __version__
from danlu.util.epoch import read_epoch
from danlu.util.xdg import base_directory

# Not typing.TYPE_CHECKING: typing is one of the modules that this one does without.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path
    from typing import Any

#: Then the program runs again, which marks the image and its layers as used.
_LIFETIME_SECONDS = 1800.0

#: A file changed this recently (ns) may change again without a new timestamp: Linux takes the time
#: of the last tick, which is at most 10 ms old. Some file systems store whole seconds only.
_RACY_NS = 50_000_000
_RACY_WHOLE_SECONDS_NS = 2_000_000_000

#: The index of the change time in :func:`_describe_file`.
_CTIME_INDEX = 0

#: Variables that a build and its output depend on, besides DANLU_* and XDG_*.
_VARIABLES = ("HOME", "TERM", "NO_COLOR", "LANG", "LC_ALL", "LC_CTYPE", "PYTHONIOENCODING")


def answer_repeated_build(arguments: Sequence[str]) -> bool:
    """Print the output of the same ``danlu build`` again, if nothing it depends on has changed.

    Its ``stderr`` has a placeholder ``milliseconds``.
    """
    started = time.monotonic()
    if "build" not in arguments[:2]:
        return False
    answer = find_answer(arguments)
    if answer is None:
        return False
    try:
        milliseconds = max(0, round(1000 * (time.monotonic() - started)))
        stdout, stderr = answer["stdout"], answer["stderr"].format(milliseconds=milliseconds)
        sys.stdout.write(stdout)
        sys.stderr.write(stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # the program reports what is wrong
    return True


def find_answer(arguments: Sequence[str]) -> dict[str, Any] | None:
    """Return the answer in the stamp of the same command line, if nothing it depends on changed."""
    try:
        key = _describe_invocation(arguments)
        data = data_directory()
        # As Python's own caches of modules: json takes half as long to load as the interpreter.
        with open(_stamp_path(data, key), "rb") as file:
            stamp = marshal.load(file)
        if stamp["key"] != key or not _is_current(stamp, data):
            return None
        answer = stamp["answer"]
    except (OSError, EOFError, ValueError, TypeError, LookupError, AttributeError):
        return None  # the program reports what is wrong
    return answer if isinstance(answer, dict) else None


def write_stamp(
    arguments: Sequence[str],
    *,
    depends_on: Iterable[Path],
    epoch: str,
    started: float,
    answer: Mapping[str, str],
) -> None:
    """Write a stamp for this command line, unless a file may have changed meanwhile.

    ``depends_on`` lists every file that the output depends on. ``epoch`` and ``started`` (wall
    time) are from before these were read.
    """
    try:
        key, data = _describe_invocation(arguments), data_directory()
        stats = {str(path): _describe_file(str(path)) for path in depends_on}
        if not epoch or any(
            stat is not None and _may_have_changed_since(started, stat[_CTIME_INDEX])
            for stat in stats.values()
        ):
            return
        stamp = {
            "key": key,
            "boot": _boot_id(),
            "epoch": epoch,
            "files": stats,
            "answer": dict(answer),
        }
        path = _stamp_path(data, key)
        temporary = f"{path}.{os.getpid()}"
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(temporary, "wb") as file:
            marshal.dump(stamp, file)
        os.replace(temporary, path)
        _remove_expired(os.path.dirname(path))
    except OSError:
        return  # the next build is slower, nothing else


def _may_have_changed_since(moment: float, change_time: int) -> bool:
    """Return whether a file that changed at ``change_time`` (ns) may have changed after ``moment``.

    ``moment`` is in seconds.
    """
    fine = change_time % 1_000_000_000 != 0
    return change_time + (_RACY_NS if fine else _RACY_WHOLE_SECONDS_NS) > moment * 1e9


def _remove_expired(directory: str) -> None:
    oldest = time.time() - _LIFETIME_SECONDS
    for entry in list(os.scandir(directory)):
        if entry.stat().st_mtime < oldest:
            os.unlink(entry.path)


def _is_current(stamp: dict[str, Any], data: str) -> bool:
    age = time.time() - os.stat(_stamp_path(data, stamp["key"])).st_mtime
    return (
        # A stamp of the future means that the clock was set back.
        0 <= age < _LIFETIME_SECONDS
        and stamp["boot"] == _boot_id()
        and stamp["epoch"] == read_epoch(os.path.join(data, "store", "epoch"))
        and all(_describe_file(path) == stat for path, stat in stamp["files"].items())
    )


def _describe_invocation(arguments: Sequence[str]) -> list[str]:
    """Return everything except files that the output depends on."""
    variables = [
        f"{name}={value}"
        for name, value in sorted(os.environ.items())
        if name.startswith(("DANLU_", "XDG_")) or name in _VARIABLES
    ]
    streams = [f"{stream.isatty()} {stream.encoding}" for stream in (sys.stdout, sys.stderr)]
    return [__version__, sys.executable, os.getcwd(), *arguments, "", *variables, *streams]


def _describe_file(path: str) -> list[int] | None:
    try:
        stat = os.stat(path)
    except FileNotFoundError:
        return None
    # Programs cannot set the change time: it reveals edits that restore size and mtime.
    return [
        stat.st_ctime_ns,
        stat.st_mtime_ns,
        stat.st_size,
        stat.st_mode,
        stat.st_ino,
        stat.st_dev,
    ]


def data_directory() -> str:
    """Return :attr:`danlu.util.paths.Paths.data`."""
    home = os.environ.get("DANLU_HOME")
    if home:
        return os.path.abspath(home)
    return os.path.join(base_directory(os.environ, "XDG_DATA_HOME", ".local/share"), "danlu")


def _stamp_path(data: str, key: list[str]) -> str:
    # A checksum suffices for the name, because the stamp contains the whole key.
    checksum = zlib.crc32(os.fsencode("\0".join(key)))
    return os.path.join(data, "stamps", f"{checksum:08x}")


def _boot_id() -> str:
    with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
        return file.read().strip()
