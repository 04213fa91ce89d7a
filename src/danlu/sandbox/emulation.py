"""Whether this machine executes the programs of another processor, through QEMU and binfmt_misc.

The kernel gives a program of another processor to the interpreter that ``binfmt_misc`` has for it
(Documentation/admin-guide/binfmt-misc.rst). In a container that works only with the flag ``F``,
with which the kernel opens the interpreter when it is registered: the container does not have it.
"""

from __future__ import annotations

import os
import struct
import subprocess
from pathlib import Path

from danlu.errors import MachineError
from danlu.graph.ops import Platform, parse_platform
from danlu.oci.types import parse_config

_BINFMT_MISC = Path("/proc/sys/fs/binfmt_misc")
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
#: ``e_machine`` and the instructions of ``exit(0)``, by architecture (ELF-64 object file format).
_EXIT_PROGRAMS = {
    "amd64": (62, bytes.fromhex("b83c00000031ff0f05")),  # mov eax, 60; xor edi, edi; syscall
    "arm64": (183, bytes.fromhex("a80b8052000080d2010000d4")),  # mov w8, 93; mov x0, 0; svc 0
}
_QEMU_NAMES = {"amd64": "qemu-x86_64", "arm64": "qemu-aarch64"}
_PROBE_TIMEOUT = 10


def host_platform() -> Platform:
    """Return the platform of this machine."""
    return Platform("linux", _read_architecture())


def read_image_platform(config: bytes) -> Platform:
    """Return the platform of an image with this configuration."""
    parsed = parse_config(config).value
    return parse_platform("/".join(filter(None, (parsed.os, parsed.architecture, parsed.variant))))


def is_foreign_image(config: bytes) -> bool:
    """Return whether the programs of an image are not for this machine's processor."""
    return parse_config(config).value.architecture != _read_architecture()


def is_foreign(platform: Platform) -> bool:
    """Return whether programs for ``platform`` are not for this machine's processor."""
    return platform.architecture != _read_architecture()


def _read_architecture() -> str:
    machine = os.uname().machine
    return _ARCHITECTURES.get(machine, machine)


def require_emulation(platform: Platform, reason: str) -> None:
    """Raise :class:`MachineError` if containers here cannot run the programs of ``platform``.

    ``reason`` says in the message what needs them: ``run()``.
    """
    if not is_foreign(platform):
        return
    name = _QEMU_NAMES.get(platform.architecture, f"qemu-{platform.architecture}")
    if not _executes_programs(platform.architecture):
        raise MachineError(
            f"{reason} executes programs for {platform}, which this machine "
            f"({host_platform()}) cannot execute",
            hint=f"install QEMU and register it: {_explain_registration(name)}",
        )
    if _lacks_fixed_interpreter(name):
        raise MachineError(
            f"{reason} executes programs for {platform}, but {name} is registered without the "
            "flag F, so containers cannot find it",
            hint=f"register it again: {_explain_registration(name)}",
        )


def _explain_registration(name: str) -> str:
    return (
        "`sudo apt-get install qemu-user-static binfmt-support && "
        f"sudo update-binfmts --enable {name}` (Debian, Ubuntu)"
    )


def _executes_programs(architecture: str) -> bool:
    """Return whether the kernel starts a program for ``architecture``; runs one that exits at once.

    Reading the registrations would not answer it: they also apply where they are not mounted.
    """
    if architecture not in _EXIT_PROGRAMS:
        return False
    # Without MFD_CLOEXEC: an emulator opens the program by its path in /proc after it was started
    # itself, and the descriptor must still be there (fexecve(3), BUGS).
    descriptor = os.memfd_create("danlu-probe", 0)
    try:
        os.write(descriptor, _make_exit_program(architecture))
        os.fchmod(descriptor, 0o755)
        result = subprocess.run(
            [f"/proc/self/fd/{descriptor}"],
            pass_fds=(descriptor,),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_PROBE_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    finally:
        os.close(descriptor)
    return result.returncode == 0


def _make_exit_program(architecture: str) -> bytes:
    """Return a static ELF program of one segment, which exits with code 0."""
    machine, code = _EXIT_PROGRAMS[architecture]
    address, headers = 0x400000, 64 + 56
    size = headers + len(code)
    identity = b"\x7fELF\x02\x01\x01" + bytes(9)
    header = struct.pack(
        "<HHIQQQIHHHHHH", 2, machine, 1, address + headers, 64, 0, 0, 64, 56, 1, 0, 0, 0
    )
    segment = struct.pack("<IIQQQQQQ", 1, 5, 0, address, address, size, size, 0x1000)
    return identity + header + segment + code


def _lacks_fixed_interpreter(name: str) -> bool:
    """Return whether the registration ``name`` is readable and lacks the flag ``F``."""
    try:
        text = (_BINFMT_MISC / name).read_text()
    except OSError:
        return False
    flags = next((line[6:] for line in text.splitlines() if line.startswith("flags:")), "F")
    # With F the kernel opens the emulator when it is registered, so it is found in a container's
    # root too (kernel, admin-guide/binfmt-misc.rst).
    return "F" not in flags
