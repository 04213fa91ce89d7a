"""Serve SFTP version 3 on stdin and stdout, for images without OpenSSH's ``sftp-server``.

Runs inside an environment as its user, so the kernel decides what it may open. Implements
draft-ietf-secsh-filexfer-02 and the extensions of OpenSSH (PROTOCOL, section 4) that its clients
use.
"""

from __future__ import annotations

import errno
import os
import stat
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

INIT, VERSION, OPEN, CLOSE, READ, WRITE, LSTAT, FSTAT, SETSTAT, FSETSTAT = range(1, 11)
OPENDIR, READDIR, REMOVE, MKDIR, RMDIR, REALPATH, STAT, RENAME, READLINK, SYMLINK = range(11, 21)
STATUS, HANDLE, DATA, NAME, ATTRS = range(101, 106)
EXTENDED, EXTENDED_REPLY = 200, 201

OK, EOF, NO_SUCH_FILE, PERMISSION_DENIED, FAILURE, BAD_MESSAGE = range(6)
OP_UNSUPPORTED = 8

ATTR_SIZE, ATTR_OWNER, ATTR_PERMISSIONS, ATTR_TIMES = 1, 2, 4, 8
OPEN_READ, OPEN_WRITE, OPEN_APPEND, OPEN_CREATE, OPEN_TRUNCATE, OPEN_EXCLUSIVE = (
    1 << bit for bit in range(6)
)

# The limits of OpenSSH's server (sftp-common.h), which clients adapt to.
MAX_PACKET = 256 * 1024
MAX_DATA = MAX_PACKET - 1024
MAX_HANDLES = 1024
ENTRIES_PER_REPLY = 100

#: Name and version of each.
EXTENSIONS = (
    (b"posix-rename@openssh.com", b"1"),
    (b"statvfs@openssh.com", b"2"),
    (b"fstatvfs@openssh.com", b"2"),
    (b"hardlink@openssh.com", b"1"),
    (b"fsync@openssh.com", b"1"),
    (b"lsetstat@openssh.com", b"1"),
    (b"limits@openssh.com", b"1"),
    (b"expand-path@openssh.com", b"1"),
)


class BadMessageError(Exception):
    """A packet that is too short, or names an unknown handle."""


class SftpPacket:
    """The fields of a packet, read in order."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def read_bytes(self, size: int) -> bytes:
        """Return the next bytes."""
        end = self.position + size
        if end > len(self.data):
            raise BadMessageError
        start, self.position = self.position, end
        return self.data[start:end]

    def read_uint32(self) -> int:
        """Return a uint32."""
        return int.from_bytes(self.read_bytes(4), "big")

    def read_uint64(self) -> int:
        """Return a uint64."""
        return int.from_bytes(self.read_bytes(8), "big")

    def read_string(self) -> bytes:
        """Return a string."""
        return self.read_bytes(self.read_uint32())

    def read_path(self) -> bytes:
        """Return a path; the empty one is the current directory."""
        return self.read_string() or b"."

    def read_attributes(self) -> dict[int, Any]:
        """Return a dictionary of attributes by their flag."""
        flags = self.read_uint32()
        found: dict[int, Any] = {}
        if flags & ATTR_SIZE:
            found[ATTR_SIZE] = self.read_uint64()
        if flags & ATTR_OWNER:
            found[ATTR_OWNER] = (self.read_uint32(), self.read_uint32())
        if flags & ATTR_PERMISSIONS:
            found[ATTR_PERMISSIONS] = stat.S_IMODE(self.read_uint32())
        if flags & ATTR_TIMES:
            found[ATTR_TIMES] = (self.read_uint32(), self.read_uint32())
        return found


def pack_string(value: bytes) -> bytes:
    """Return a string as sent."""
    return len(value).to_bytes(4, "big") + value


def pack_attributes(status: os.stat_result) -> bytes:
    """Return the attributes of a stat result as sent."""
    flags = ATTR_SIZE | ATTR_OWNER | ATTR_PERMISSIONS | ATTR_TIMES
    times = [max(0, min(int(moment), 0xFFFFFFFF)) for moment in (status.st_atime, status.st_mtime)]
    return struct.pack(
        ">IQIIIII", flags, status.st_size, status.st_uid, status.st_gid, status.st_mode, *times
    )


def format_long_name(name: bytes, status: os.stat_result) -> bytes:
    """Return a line as ``ls -l`` prints it, with numbers for users."""
    moment = time.strftime("%b %e %H:%M", time.localtime(status.st_mtime))
    return b"%s %4d %-8d %-8d %8d %s %s" % (
        stat.filemode(status.st_mode).encode(),
        status.st_nlink,
        status.st_uid,
        status.st_gid,
        status.st_size,
        moment.encode(),
        name,
    )


def apply_attributes(
    target: bytes | int, attributes: dict[int, Any], *, follow: bool = True
) -> None:
    """Change the attributes of a path or descriptor."""
    follows: dict[str, Any] = {} if follow else {"follow_symlinks": False}
    if ATTR_SIZE in attributes and follow:
        os.truncate(target, attributes[ATTR_SIZE])
    if ATTR_OWNER in attributes:
        os.chown(target, *attributes[ATTR_OWNER], **follows)
    if ATTR_PERMISSIONS in attributes and follow:
        os.chmod(target, attributes[ATTR_PERMISSIONS])
    if ATTR_TIMES in attributes:
        os.utime(target, attributes[ATTR_TIMES], **follows)


class SftpServer:
    """The open handles, and a method per request."""

    def __init__(self, write: Callable[[bytes], None]) -> None:
        self.write = write
        self.handles: dict[bytes, Any] = {}
        self.next_handle = 0

    def send_packet(self, kind: int, *parts: bytes) -> None:
        """Send a packet."""
        body = b"".join((bytes([kind]), *parts))
        self.write(len(body).to_bytes(4, "big") + body)

    def reply_status(self, number: bytes, code: int, message: str = "") -> None:
        """Send a status."""
        text = pack_string(message.encode(errors="replace")) + pack_string(b"")
        self.send_packet(STATUS, number, code.to_bytes(4, "big"), text)

    def reply_name(self, number: bytes, name: bytes) -> None:
        """Send one name."""
        strings = pack_string(name) + pack_string(name)
        self.send_packet(NAME, number, (1).to_bytes(4, "big"), strings, bytes(4))

    def handle_packet(self, data: bytes) -> None:
        """Answer a packet."""
        request = SftpPacket(data)
        kind = request.read_bytes(1)[0]
        if kind == INIT:
            pairs = [pack_string(part) for pair in EXTENSIONS for part in pair]
            self.send_packet(VERSION, (3).to_bytes(4, "big"), *pairs)
            return
        number = request.read_bytes(4)
        method = METHODS.get(kind)
        try:
            if method is None:
                self.reply_status(number, OP_UNSUPPORTED, "unsupported")
            else:
                method(self, number, request)
        except FileNotFoundError as error:
            self.reply_status(number, NO_SUCH_FILE, error.strerror or "")
        except PermissionError as error:
            self.reply_status(number, PERMISSION_DENIED, error.strerror or "")
        except (OSError, ValueError, OverflowError) as error:
            self.reply_status(number, FAILURE, getattr(error, "strerror", None) or str(error))
        except BadMessageError:
            self.reply_status(number, BAD_MESSAGE, "bad message")

    def add_handle(self, number: bytes, opened: Any) -> None:
        """Send a handle for a descriptor, or an iterator of a directory's entries."""
        if len(self.handles) >= MAX_HANDLES:
            if isinstance(opened, int):
                os.close(opened)
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.next_handle += 1
        handle = b"%d" % self.next_handle
        self.handles[handle] = opened
        self.send_packet(HANDLE, number, pack_string(handle))

    def find_file(self, request: SftpPacket) -> int:
        """Return the descriptor of the request's handle."""
        opened = self.handles.get(request.read_string())
        if not isinstance(opened, int):
            raise BadMessageError
        return opened

    def open_file(self, number: bytes, request: SftpPacket) -> None:
        """Open a file."""
        path, wanted, attributes = (
            request.read_path(),
            request.read_uint32(),
            request.read_attributes(),
        )
        both = OPEN_READ | OPEN_WRITE
        flags = os.O_RDWR if wanted & both == both else os.O_RDONLY
        if wanted & both == OPEN_WRITE:
            flags = os.O_WRONLY
        for bit, flag in (
            (OPEN_APPEND, os.O_APPEND),
            (OPEN_CREATE, os.O_CREAT),
            (OPEN_TRUNCATE, os.O_TRUNC),
            (OPEN_EXCLUSIVE, os.O_EXCL),
        ):
            if wanted & bit:
                flags |= flag
        mode = attributes.get(ATTR_PERMISSIONS, 0o666)
        self.add_handle(number, os.open(path, flags | os.O_CLOEXEC, mode))

    def close_handle(self, number: bytes, request: SftpPacket) -> None:
        """Close a handle."""
        opened = self.handles.pop(request.read_string(), None)
        if opened is None:
            raise BadMessageError
        if isinstance(opened, int):
            os.close(opened)
        else:
            opened.close()
        self.reply_status(number, OK)

    def read_file(self, number: bytes, request: SftpPacket) -> None:
        """Read from a file."""
        opened, offset, size = self.find_file(request), request.read_uint64(), request.read_uint32()
        # As from OpenSSH's server: clients go on after a short answer, and know the limit
        # (limits@openssh.com).
        data = os.pread(opened, min(size, MAX_DATA), offset)
        if data or not size:
            self.send_packet(DATA, number, len(data).to_bytes(4, "big"), data)
        else:
            self.reply_status(number, EOF, "end of file")

    def write_file(self, number: bytes, request: SftpPacket) -> None:
        """Write to a file."""
        opened, offset, data = self.find_file(request), request.read_uint64(), request.read_string()
        view = memoryview(data)
        while view:
            written = os.pwrite(opened, view, offset)
            view, offset = view[written:], offset + written
        self.reply_status(number, OK)

    def stat_path(self, number: bytes, request: SftpPacket) -> None:
        """Send the attributes of a path."""
        self.send_packet(ATTRS, number, pack_attributes(os.stat(request.read_path())))

    def stat_link(self, number: bytes, request: SftpPacket) -> None:
        """Send the attributes of a path without following a link."""
        self.send_packet(ATTRS, number, pack_attributes(os.lstat(request.read_path())))

    def stat_file(self, number: bytes, request: SftpPacket) -> None:
        """Send the attributes of an open file."""
        self.send_packet(ATTRS, number, pack_attributes(os.fstat(self.find_file(request))))

    def change_path(self, number: bytes, request: SftpPacket) -> None:
        """Change the attributes of a path."""
        apply_attributes(request.read_path(), request.read_attributes())
        self.reply_status(number, OK)

    def change_file(self, number: bytes, request: SftpPacket) -> None:
        """Change the attributes of an open file."""
        apply_attributes(self.find_file(request), request.read_attributes())
        self.reply_status(number, OK)

    def open_directory(self, number: bytes, request: SftpPacket) -> None:
        """Open a directory."""
        self.add_handle(number, os.scandir(request.read_path()))

    def read_directory(self, number: bytes, request: SftpPacket) -> None:
        """Send the next entries of a directory."""
        entries = self.handles.get(request.read_string())
        if entries is None or isinstance(entries, int):
            raise BadMessageError
        parts = []
        for entry in entries:
            try:
                status = entry.stat(follow_symlinks=False)
            except OSError:  # removed since
                continue
            line = format_long_name(entry.name, status)
            parts.append(pack_string(entry.name) + pack_string(line) + pack_attributes(status))
            if len(parts) == ENTRIES_PER_REPLY:
                break
        if parts:
            self.send_packet(NAME, number, len(parts).to_bytes(4, "big"), *parts)
        else:
            self.reply_status(number, EOF, "end of directory")

    def remove_file(self, number: bytes, request: SftpPacket) -> None:
        """Remove a file."""
        os.unlink(request.read_path())
        self.reply_status(number, OK)

    def make_directory(self, number: bytes, request: SftpPacket) -> None:
        """Create a directory."""
        path, attributes = request.read_path(), request.read_attributes()
        os.mkdir(path, attributes.get(ATTR_PERMISSIONS, 0o777))
        self.reply_status(number, OK)

    def remove_directory(self, number: bytes, request: SftpPacket) -> None:
        """Remove an empty directory."""
        os.rmdir(request.read_path())
        self.reply_status(number, OK)

    def resolve_path(self, number: bytes, request: SftpPacket) -> None:
        """Send an absolute path without links."""
        self.reply_name(number, os.path.realpath(request.read_path()))

    def rename_path(self, number: bytes, request: SftpPacket) -> None:
        """Rename, unless the new name exists."""
        old, new = request.read_path(), request.read_path()
        # Version 3 forbids to replace a file (draft-ietf-secsh-filexfer-02, 6.5), which rename(2)
        # does.
        if os.path.lexists(new):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
        os.rename(old, new)
        self.reply_status(number, OK)

    def read_link(self, number: bytes, request: SftpPacket) -> None:
        """Send the target of a link."""
        self.reply_name(number, os.readlink(request.read_path()))

    def make_link(self, number: bytes, request: SftpPacket) -> None:
        """Create a symbolic link; OpenSSH's clients send the target first."""
        os.symlink(request.read_string(), request.read_string())
        self.reply_status(number, OK)

    def handle_extension(self, number: bytes, request: SftpPacket) -> None:
        """Answer an extended request."""
        method = EXTENDED_METHODS.get(request.read_string())
        if method is None:
            self.reply_status(number, OP_UNSUPPORTED, "unsupported")
        else:
            method(self, number, request)

    def replace_path(self, number: bytes, request: SftpPacket) -> None:
        """Rename, replacing what has the new name."""
        os.replace(request.read_path(), request.read_path())
        self.reply_status(number, OK)

    def make_hard_link(self, number: bytes, request: SftpPacket) -> None:
        """Create a hard link."""
        os.link(request.read_path(), request.read_path(), follow_symlinks=False)
        self.reply_status(number, OK)

    def sync_file(self, number: bytes, request: SftpPacket) -> None:
        """Write a file to the disk."""
        os.fsync(self.find_file(request))
        self.reply_status(number, OK)

    def change_link(self, number: bytes, request: SftpPacket) -> None:
        """Change the attributes of a path without following a link."""
        apply_attributes(request.read_path(), request.read_attributes(), follow=False)
        self.reply_status(number, OK)

    def expand_path(self, number: bytes, request: SftpPacket) -> None:
        """Send an absolute path, with a leading ``~`` replaced."""
        self.reply_name(number, os.path.realpath(os.path.expanduser(request.read_path())))

    def report_limits(self, number: bytes, request: SftpPacket) -> None:
        """Send the limits of packets and handles."""
        values = struct.pack(">QQQQ", MAX_PACKET, MAX_DATA, MAX_DATA, MAX_HANDLES)
        self.send_packet(EXTENDED_REPLY, number, values)

    def stat_file_system(self, number: bytes, request: SftpPacket) -> None:
        """Send the figures of a path's file system."""
        self.reply_file_system(number, os.statvfs(request.read_path()))

    def stat_open_file_system(self, number: bytes, request: SftpPacket) -> None:
        """Send the figures of an open file's file system."""
        self.reply_file_system(number, os.fstatvfs(self.find_file(request)))

    def reply_file_system(self, number: bytes, status: os.statvfs_result) -> None:
        """Send the figures of a file system."""
        self.send_packet(
            EXTENDED_REPLY,
            number,
            struct.pack(
                ">11Q",
                *(status.f_bsize, status.f_frsize, status.f_blocks, status.f_bfree),
                *(status.f_bavail, status.f_files, status.f_ffree, status.f_favail),
                *(0, status.f_flag & 3, status.f_namemax),
            ),
        )


METHODS = {
    OPEN: SftpServer.open_file,
    CLOSE: SftpServer.close_handle,
    READ: SftpServer.read_file,
    WRITE: SftpServer.write_file,
    LSTAT: SftpServer.stat_link,
    FSTAT: SftpServer.stat_file,
    SETSTAT: SftpServer.change_path,
    FSETSTAT: SftpServer.change_file,
    OPENDIR: SftpServer.open_directory,
    READDIR: SftpServer.read_directory,
    REMOVE: SftpServer.remove_file,
    MKDIR: SftpServer.make_directory,
    RMDIR: SftpServer.remove_directory,
    REALPATH: SftpServer.resolve_path,
    STAT: SftpServer.stat_path,
    RENAME: SftpServer.rename_path,
    READLINK: SftpServer.read_link,
    SYMLINK: SftpServer.make_link,
    EXTENDED: SftpServer.handle_extension,
}

EXTENDED_METHODS = {
    b"posix-rename@openssh.com": SftpServer.replace_path,
    b"statvfs@openssh.com": SftpServer.stat_file_system,
    b"fstatvfs@openssh.com": SftpServer.stat_open_file_system,
    b"hardlink@openssh.com": SftpServer.make_hard_link,
    b"fsync@openssh.com": SftpServer.sync_file,
    b"lsetstat@openssh.com": SftpServer.change_link,
    b"limits@openssh.com": SftpServer.report_limits,
    b"expand-path@openssh.com": SftpServer.expand_path,
}


def main() -> None:
    """Answer packets until stdin ends."""
    source, target = sys.stdin.buffer, sys.stdout.buffer

    def write(data: bytes) -> None:
        target.write(data)
        target.flush()

    server = SftpServer(write)
    while True:
        header = source.read(4)
        if len(header) < 4:
            return
        size = int.from_bytes(header, "big")
        # After a wrong length nothing says where the next packet begins.
        if not 0 < size <= MAX_PACKET:
            sys.exit("sftp: invalid packet size")
        data = source.read(size)
        if len(data) < size:
            return
        server.handle_packet(data)


if __name__ == "__main__":
    main()
