"""Install exactly the wheels of a list with one call of uv, if possible before the builder is
loaded.

Which wheels the store lacks is known as soon as the build graph is. Importing the rest of the
builder takes as long as uv needs for a small wheel, and the two can run in parallel. So this module
is imported before everything else of a build, and must import little.
"""

from __future__ import annotations

import os
import re
import select
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import msgspec

from danlu.errors import DanluError
from danlu.graph.ops import Wheel
from danlu.sources.pypi.platform_target import GLIBC_LEVELS
from danlu.sources.pypi.uv import DownloadReport, Uv, UvCommand
from danlu.util.human import parse_size

#: ``Downloading scipy (33.7MiB)``, later ``Downloaded scipy``.
_DOWNLOAD_MESSAGE = re.compile(
    r"Download(?:ed (?P<name>[\w.-]+)|ing (?P<begun>[\w.-]+) \((?P<size>[\d.]+[KMGT]?i?B)\))"
)

#: What uv says about its progress, before an error.
_PROGRESS_MESSAGES = re.compile(
    r"^(?: ?Download(?:ing|ed) |Using CPython |Resolved |Prepared |Installed | [-+~] ).*\n", re.M
)

#: How often the messages of a command that runs in the background are read.
_POLL_SECONDS = 0.2


def requirement_line(wheel: Wheel, path: Path | None) -> str:
    """Return the wheel as a line of a requirements file that accepts only its hash."""
    hash_ = "sha256:" + wheel.sha256.removeprefix("sha256:")
    if path is not None:
        return f"{wheel.name} @ {path.absolute().as_uri()} --hash={hash_}"
    return f"{wheel.name}=={wheel.version} --hash={hash_}"


def platform_options(wheels: Sequence[Wheel]) -> list[str]:
    """Return options with which uv accepts exactly these files: the lock has decided what fits."""
    files = " ".join(wheel.file for wheel in wheels)
    machine = "aarch64" if "aarch64" in files else "x86_64"
    if not re.search(r"_(x86_64|aarch64)\b", files):
        machine = os.uname().machine
    system = "unknown-linux-musl" if "musllinux" in files else f"manylinux_2_{GLIBC_LEVELS[-1]}"
    # Packages can require a patch level. The lock has already checked it, so allow any.
    return [
        *("--python-version", f"{wheels[0].scheme.version}.99"),
        *("--python-platform", f"{machine}-{system}"),
    ]


class DownloadReader:
    """Reads from uv's messages which files it downloads; it announces those of 1 MiB or more."""

    def __init__(self, report: DownloadReport) -> None:
        self._report = report
        self._sizes: dict[str, int] = {}
        self._rest = ""

    def read(self, text: str) -> None:
        """Read the next part of the messages."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            match = _DOWNLOAD_MESSAGE.fullmatch(line.strip())
            if match is None:
                continue
            if match["size"]:
                size = self._sizes[match["begun"]] = parse_size(match["size"])
                self._report(match["begun"], 0, size)
            elif size := self._sizes.get(match["name"], 0):
                self._report(match["name"], size, size)


class InstallCommand(msgspec.Struct, frozen=True):
    """A command of uv that installs wheels into ``prefix``."""

    prefix: Path
    offline: bool
    call: UvCommand
    report: DownloadReport

    async def run(self) -> InstallAttempt:
        """Run the command and wait for it."""
        code, _, messages = await self.call.run(DownloadReader(self.report).read)
        return self.to_attempt(code, messages)

    def to_attempt(self, code: int, messages: str) -> InstallAttempt:
        """Return the outcome of the command."""
        if not code:
            return InstallAttempt(self.prefix, self.offline)
        error = _PROGRESS_MESSAGES.sub("", messages)
        return InstallAttempt(
            self.prefix, self.offline, error or f"uv failed with exit code {code}"
        )


class InstallAttempt(msgspec.Struct, frozen=True):
    """Wheels installed into ``prefix``, or uv's error message."""

    prefix: Path
    offline: bool
    error: str = ""


def plan_install(
    uv: Uv, wheels: Sequence[Wheel], lines: Sequence[str], prefix: Path, *, online: bool = False
) -> InstallCommand:
    """Return the command that installs exactly ``lines`` into ``prefix``, which is created.

    Without ``online``, only uv's cache is used if all files were downloaded through it before.
    """
    prefix.mkdir(parents=True)
    listing = prefix.with_name(prefix.name + ".txt")
    listing.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    # "clone" shares storage with uv's cache; without reflinks uv falls back to hard links.
    options = [
        *("--no-deps", "--require-hashes", "--no-compile-bytecode"),
        *("--link-mode", "clone", "--prefix", str(prefix), *platform_options(wheels)),
        *("--requirements", str(listing)),
    ]
    offline = not online and (uv.offline or uv.has_fetched(wheel_digests(wheels)))
    call = uv.prepare(("pip", "install"), options, offline=offline, quiet=offline)
    return InstallCommand(prefix, offline, call, uv.report_download)


def wheel_digests(wheels: Iterable[Wheel]) -> list[str]:
    """Return the SHA-256 digests of wheels, without prefix."""
    return [wheel.sha256.removeprefix("sha256:") for wheel in wheels]


class WheelPrefetch:
    """Wheels that uv is installing into a prefix in the background."""

    def __init__(
        self,
        wheels: Sequence[Wheel],
        planned: InstallCommand,
        process: subprocess.Popen[bytes],
        messages: IO[bytes],
    ) -> None:
        self._wheels = tuple(wheels)
        self._planned = planned
        self._process = process
        self._messages = messages

    async def take(self, wheels: Sequence[Wheel], report: DownloadReport) -> InstallAttempt | None:
        """Wait for uv and return the outcome; None if these are not exactly the wheels being
        installed.

        The caller takes ownership of the prefix, so the outcome is returned only once.
        """
        if self._wheels != tuple(wheels):
            return None
        import anyio.to_thread

        self._wheels = ()
        # On cancellation the thread is abandoned; `start_prefetch` then kills the process.
        code = await anyio.to_thread.run_sync(
            self._follow_messages, DownloadReader(report), abandon_on_cancel=True
        )
        return self._planned.to_attempt(code, self._read_messages(0))

    def _follow_messages(self, reader: DownloadReader) -> int:
        """Read uv's messages until it ends, and return its exit code."""
        place = 0
        # `Popen.wait` with a limit looks only every 50 ms, a fifth of a small build.
        end = select.poll()
        with open(os.pidfd_open(self._process.pid), "rb", buffering=0) as process:
            end.register(process, select.POLLIN)
            while not end.poll(_POLL_SECONDS * 1000):
                text = self._read_messages(place)
                place += len(text)
                reader.read(text)
        return self._process.wait()

    def _read_messages(self, place: int) -> str:
        size = os.fstat(self._messages.fileno()).st_size
        return os.pread(self._messages.fileno(), size, place).decode("latin-1")


@contextmanager
def start_prefetch(
    uv: Uv, wheels: Sequence[Wheel], workspace: Path
) -> Iterator[WheelPrefetch | None]:
    """Start installing ``wheels`` of indexes, all of one scheme; killed if still running at the
    end.

    ``workspace`` is an empty directory on the store's file system. Yields None if the installation
    cannot be started: the later regular installation reports the reason.
    """
    lines = [requirement_line(wheel, None) for wheel in wheels]
    # In memory, because uv's message may be that the disk is full.
    with open(os.memfd_create("uv"), "w+b") as messages:
        try:
            planned = plan_install(uv, wheels, lines, workspace / "prefix")
            process = planned.call.start(messages)
        except (DanluError, OSError):
            yield None
            return
        try:
            yield WheelPrefetch(wheels, planned, process, messages)
        finally:
            process.kill()
            process.wait()
