"""Serve the protocol of ``scp -O`` (OpenSSH before 9) on stdin and stdout, for images without scp.

Runs inside an environment as its user, so the kernel decides what it may open. The client starts it
as ``scp -f PATH...`` to read files and as ``scp -t PATH`` to write them. The specification is
OpenSSH's scp.c. Each side answers a line with a byte: 0, or 1 and a message.
"""

from __future__ import annotations

import os
import re
import stat
import sys
from typing import BinaryIO, Tuple  # noqa: UP035

CHUNK_SIZE = 1 << 16
MAX_LINE = 1 << 16
OK, WARNING, FATAL = b"\0", b"\1", b"\2"

#: Of the last access and change. An image may have Python 3.8.
Times = Tuple[int, int]  # noqa: UP006

TIMES = re.compile(rb"T(\d{1,19}) \d{1,6} (\d{1,19}) \d{1,6}")
ENTRY = re.compile(rb"[CD]([0-7]{4,5}) (\d{1,19}) (.+)", re.DOTALL)


class ProtocolError(Exception):
    """The client does not speak the protocol, or has ended it."""


class ScpServer:
    """Serves one client; ``options`` are the letters of the command line."""

    def __init__(self, source: BinaryIO, target: BinaryIO, options: set[str]) -> None:
        self.source = source
        self.target = target
        self.recursive = "r" in options
        self.preserve = "p" in options
        self.needs_directory = "d" in options
        self.failed = False
        # Reading it means replacing it.
        self.umask = os.umask(0)
        os.umask(self.umask)

    # -- messages -------------------------------------------------------------------------------

    def send(self, data: bytes) -> None:
        """Send an answer or a line immediately."""
        self.target.write(data)
        self.target.flush()

    def send_error(self, path: bytes, error: OSError | str, kind: bytes = WARNING) -> None:
        """Report an error, which takes the place of an answer or of a file."""
        self.failed = True
        reason = error if isinstance(error, str) else error.strerror or str(error)
        line = b"scp: %s: %s" % (path, reason.encode())
        self.send(kind + line.replace(b"\n", b"?") + b"\n")

    def read_line(self) -> bytes:
        """Return a line without its end; empty at the end of the input."""
        line = self.source.readline(MAX_LINE)
        if line and not line.endswith(b"\n"):
            raise ProtocolError("line cut")
        return line[:-1]

    def read_answer(self) -> bool:
        """Return whether the client has accepted what was sent last."""
        kind = self.source.read(1)
        if kind == OK:
            return True
        if kind != WARNING:
            raise ProtocolError(self.read_line().decode(errors="replace") or "connection lost")
        self.failed = True
        self.read_line()  # which the client has shown
        return False

    # -- from the environment -------------------------------------------------------------------

    def send_paths(self, paths: list[bytes]) -> None:
        """Send the files and directories of the command line."""
        if not self.read_answer():
            raise ProtocolError("refused")
        for path in paths:
            self.send_path(path)

    def send_path(self, path: bytes) -> None:
        """Send a file or directory, or the error of opening it."""
        name = os.path.basename(path.rstrip(b"/")) or b"/"
        try:
            if b"\n" in name:
                raise OSError(0, "line break in its name")
            # A FIFO would wait for a writer.
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self.send_error(path, error)
            return
        try:
            found = os.fstat(descriptor)
            if stat.S_ISDIR(found.st_mode) and self.recursive:
                self.send_directory(path, name, found)
            elif stat.S_ISREG(found.st_mode):
                self.send_file(path, name, descriptor, found)
            else:
                self.send_error(path, "not a regular file")
        finally:
            os.close(descriptor)

    def send_header(self, kind: bytes, name: bytes, size: int, found: os.stat_result) -> bool:
        """Announce a file or directory; return whether the client takes it."""
        if self.preserve:
            self.send(b"T%d 0 %d 0\n" % (found.st_mtime, found.st_atime))
            if not self.read_answer():
                return False
        self.send(b"%s%04o %d %s\n" % (kind, found.st_mode & 0o7777, size, name))
        return self.read_answer()

    def send_directory(self, path: bytes, name: bytes, found: os.stat_result) -> None:
        """Send a directory with all below it."""
        try:
            entries = sorted(os.listdir(path))
        except OSError as error:
            self.send_error(path, error)
            return
        if not self.send_header(b"D", name, 0, found):
            return
        for entry in entries:
            self.send_path(os.path.join(path, entry))
        self.send(b"E\n")
        self.read_answer()

    def send_file(self, path: bytes, name: bytes, descriptor: int, found: os.stat_result) -> None:
        """Send a file of the size that it had when it was opened."""
        if not self.send_header(b"C", name, found.st_size, found):
            return
        left, failure = found.st_size, ""
        while left:
            data = b""
            try:
                data = os.read(descriptor, min(left, CHUNK_SIZE))
            except OSError as error:
                failure = failure or str(error.strerror)
            if not data:
                failure = failure or "became shorter while it was read"
                # The announced number of bytes has to follow.
                data = bytes(min(left, CHUNK_SIZE))
            self.target.write(data)
            left -= len(data)
        if failure:
            self.send_error(path, failure)
        else:
            self.send(OK)
        self.read_answer()

    # -- to the environment ---------------------------------------------------------------------

    def receive_into(self, path: bytes) -> None:
        """Receive files and directories into ``path``, or one file or directory as ``path``."""
        if self.needs_directory and not os.path.isdir(path):
            self.send_error(path, "not a directory", FATAL)
            return
        self.send(OK)
        self.receive_entries(path)

    def receive_entries(self, path: bytes) -> None:
        """Receive until the end of the directory ``path``, or of the input."""
        times: Times | None = None
        while line := self.read_line():
            if line[:1] in (WARNING, FATAL):
                self.failed = True  # the client has shown it
                if line[:1] == FATAL:
                    return
            elif line[:1] == b"E":
                self.send(OK)
                return
            elif match := TIMES.fullmatch(line):
                times = int(match[2]), int(match[1])
                self.send(OK)
            elif match := ENTRY.fullmatch(line):
                mode, size, name = int(match[1], 8) & 0o7777, int(match[2]), match[3]
                if b"/" in name or name in (b".", b".."):
                    raise ProtocolError("unexpected filename")
                target = os.path.join(path, name) if os.path.isdir(path) else path
                if line[:1] == b"D":
                    self.receive_directory(target, mode, times)
                else:
                    self.receive_file(target, mode, size, times)
                times = None
            else:
                raise ProtocolError("unexpected line")

    def receive_directory(self, path: bytes, mode: int, times: Times | None) -> None:
        """Receive a directory that was announced, with all below it."""
        if not self.recursive:
            raise ProtocolError("received a directory without -r")
        created = False
        try:
            # Its owner must be able to write into it for now.
            os.mkdir(path, mode | 0o700)
            created = True
        except FileExistsError as error:
            if not os.path.isdir(path):
                self.send_error(path, error)
                return
        except OSError as error:
            self.send_error(path, error)
            return
        self.send(OK)
        self.receive_entries(path)
        try:
            if self.preserve or created:
                os.chmod(path, mode if self.preserve else mode & ~self.umask)
            if times is not None:
                os.utime(path, times)
        except OSError as error:
            self.send_error(path, error)

    def receive_file(self, path: bytes, mode: int, size: int, times: Times | None) -> None:
        """Receive a file that was announced."""
        exists = os.path.exists(path)
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC
            descriptor = os.open(path, flags, mode | stat.S_IWUSR)
        except OSError as error:
            self.send_error(path, error)
            return
        self.send(OK)
        failure: OSError | None = None
        with open(descriptor, "wb", buffering=0) as file:
            while size:
                data = self.source.read(min(size, CHUNK_SIZE))
                if not data:
                    raise ProtocolError("connection lost")
                size -= len(data)
                try:
                    while data and failure is None:
                        data = data[file.write(data) :]
                except OSError as error:
                    failure = error  # the rest has to be read all the same
            try:
                if stat.S_ISREG(os.fstat(descriptor).st_mode):
                    # What was longer before keeps nothing of its end.
                    os.ftruncate(descriptor, file.tell())
                if self.preserve:
                    os.fchmod(descriptor, mode)
                elif not exists:
                    os.fchmod(descriptor, mode & ~self.umask)
                if times is not None:
                    os.utime(descriptor, times)
            except OSError as error:
                failure = failure or error
        self.read_answer()
        if failure is not None:
            self.send_error(path, failure)
        else:
            self.send(OK)


def main() -> None:
    """Serve the command line of ``scp``."""
    arguments = sys.argv[1:]
    options: set[str] = set()
    while arguments and arguments[0].startswith("-"):
        word = arguments.pop(0)
        if word == "--":
            break
        options |= set(word[1:])
    paths = [os.fsencode(path or ".") for path in arguments]
    server = ScpServer(sys.stdin.buffer, sys.stdout.buffer, options)
    try:
        if "f" in options and paths:
            server.send_paths(paths)
        elif "t" in options and len(paths) == 1:
            server.receive_into(paths[0])
        else:
            server.send_error(b"usage", "-f PATH... or -t PATH", FATAL)
    except ProtocolError as error:
        server.send_error(b"protocol error", str(error), FATAL)
    except BrokenPipeError:
        server.failed = True
    sys.exit(1 if server.failed else 0)


if __name__ == "__main__":
    main()
