"""Tiny static ELF programs with a single system call, built without compiler and libc."""

from __future__ import annotations

import struct
from pathlib import Path

__all__ = ["write_hello_32", "write_system_call"]

_BASE = 0x400000


def write_system_call(path: Path, number: int, *arguments: int) -> Path:
    """Write a 64-bit x86 program that makes a system call and exits with its error number, or 0."""
    code = b"\xb8" + struct.pack("<I", number)
    # edi, esi, edx, then r10d.
    for load, argument in zip((b"\xbf", b"\xbe", b"\xba", b"\x41\xba"), arguments, strict=False):
        code += load + struct.pack("<I", argument)
    code += b"\x0f\x05"  # syscall
    code += b"\x31\xff\x48\x85\xc0\x79\x04\xf7\xd8\x89\xc7"  # edi = -rax if rax < 0 else 0
    code += b"\xb8\x3c\x00\x00\x00\x0f\x05"  # exit(edi)
    header = struct.pack("<4s5B7x", b"\x7fELF", 2, 1, 1, 0, 0)
    start = _BASE + 64 + 56
    header += struct.pack("<HHIQQQIHHHHHH", 2, 62, 1, start, 64, 0, 0, 64, 56, 1, 64, 0, 0)
    size = 64 + 56 + len(code)
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, _BASE, _BASE, size, size, 0x1000)
    return _write_file(path, header + segment + code)


def write_hello_32(path: Path) -> Path:
    """Write a 32-bit x86 program that prints ``32 bits`` and exits with 0."""
    text = b"32 bits\n"
    start = _BASE + 52 + 32
    code_size = 5 * 4 + 2 + 5 + 2 + 2
    code = b"\xb8" + struct.pack("<I", 4)  # write
    code += b"\xbb" + struct.pack("<I", 1)
    code += b"\xb9" + struct.pack("<I", start + code_size)
    code += b"\xba" + struct.pack("<I", len(text))
    code += b"\xcd\x80" + b"\xb8" + struct.pack("<I", 1) + b"\x31\xdb" + b"\xcd\x80"
    assert len(code) == code_size
    header = struct.pack("<4s5B7x", b"\x7fELF", 1, 1, 1, 0, 0)
    header += struct.pack("<HHIIIIIHHHHHH", 2, 3, 1, start, 52, 0, 0, 52, 32, 1, 40, 0, 0)
    size = 52 + 32 + len(code) + len(text)
    segment = struct.pack("<IIIIIIII", 1, 0, _BASE, _BASE, size, size, 5, 0x1000)
    return _write_file(path, header + segment + code + text)


def _write_file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o755)
    return path
