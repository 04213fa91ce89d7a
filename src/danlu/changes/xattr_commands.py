"""Commands that set the extended attributes of files, such as capabilities."""

from __future__ import annotations

import base64
import shlex
from collections.abc import Callable, Iterator, Sequence

_CAPABILITY_XATTR = "security.capability"
#: In the order of their numbers (linux/capability.h).
_CAPABILITIES = (
    *("chown", "dac_override", "dac_read_search", "fowner"),
    *("fsetid", "kill", "setgid", "setuid"),
    *("setpcap", "linux_immutable", "net_bind_service", "net_broadcast"),
    *("net_admin", "net_raw", "ipc_lock", "ipc_owner"),
    *("sys_module", "sys_rawio", "sys_chroot", "sys_ptrace"),
    *("sys_pacct", "sys_admin", "sys_boot", "sys_nice"),
    *("sys_resource", "sys_time", "sys_tty_config", "mknod"),
    *("lease", "audit_write", "audit_control", "setfcap"),
    *("mac_override", "mac_admin", "syslog", "wake_alarm"),
    *("block_suspend", "audit_read", "perfmon", "bpf"),
    *("checkpoint_restore",),
)
#: Where programs are, and the packages of Debian that have them.
_DIRECTORIES = ("usr/sbin", "usr/bin", "sbin", "bin")
_PACKAGES = {"setcap": "libcap2-bin", "setfattr": "attr"}

Xattrs = tuple[tuple[str, bytes], ...]


def find_xattr_problem(
    changed: Xattrs,
    lost: Sequence[str],
    has_file: Callable[[str], bool],
    packages: Sequence[str],
) -> str:
    """Return why a build cannot set and remove attributes, empty if it can.

    It has the programs that ``has_file`` finds, and those of ``packages``.
    """
    for name, value in (*changed, *((name, None) for name in lost)):
        program = "setcap" if name == _CAPABILITY_XATTR else "setfattr"
        package = _PACKAGES[program]
        if package not in packages and not any(
            has_file(f"{directory}/{program}") for directory in _DIRECTORIES
        ):
            return f'its attribute {name} needs {program}: install.apt_packages(["{package}"])'
        if program == "setcap" and value is not None and not format_capabilities(value):
            return "its capabilities are unknown"
    return ""


def render_xattr_commands(path: str, changed: Xattrs, lost: Sequence[str]) -> Iterator[str]:
    """Yield commands that set and remove attributes of a file."""
    place = quote_shell(path)
    for name, value in changed:
        if name == _CAPABILITY_XATTR:
            yield f"setcap {shlex.quote(format_capabilities(value))} {place}"
        else:
            encoded = base64.b64encode(value).decode()
            yield f"setfattr -h -n {quote_shell(name)} -v 0s{encoded} -- {place}"
    for name in lost:
        if name == _CAPABILITY_XATTR:
            yield f"setcap -r {place}"
        else:
            yield f"setfattr -h -x {quote_shell(name)} -- {place}"


def format_capabilities(value: bytes) -> str:
    """Return a file's capabilities in the form of cap_from_text(3); empty if that has none.

    The value is linux/capability.h's ``vfs_cap_data``: a word with the revision and the effective
    bit, then permitted and inheritable words, the lower half of each first.
    """
    if len(value) not in (20, 24):
        return ""
    words = [int.from_bytes(value[place : place + 4], "little") for place in range(0, 20, 4)]
    permitted, inheritable = words[1] | words[3] << 32, words[2] | words[4] << 32
    if (permitted | inheritable) >> len(_CAPABILITIES):
        return ""
    flags: dict[str, list[str]] = {}
    for number, name in enumerate(_CAPABILITIES):
        chosen = "i" * (inheritable >> number & 1) + "p" * (permitted >> number & 1)
        if chosen:
            flags.setdefault("e" * (words[0] & 1) + chosen, []).append(f"cap_{name}")
    return " ".join(f"{','.join(names)}={flag}" for flag, names in sorted(flags.items())) or "="


def quote_shell(text: str) -> str:
    """Return a word of bash that is one line of text, whatever bytes a name has."""
    if text.isprintable() and not any("\ud800" <= char <= "\udfff" for char in text):
        return shlex.quote(text)
    data = text.encode(errors="surrogateescape")
    return "$'" + "".join(map(_escape_byte, data)) + "'"


def _escape_byte(byte: int) -> str:
    is_plain = 0x20 <= byte < 0x7F and byte not in b"'\\"
    return chr(byte) if is_plain else f"\\x{byte:02x}"
