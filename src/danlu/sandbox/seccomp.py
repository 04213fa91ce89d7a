"""The seccomp filter of a sandbox: Docker's default profile, a profile from a file, or none.

``seccomp.json`` is the unmodified default profile of the Docker engine (moby 26.1.5,
``profiles/seccomp/default.json``, Apache License 2.0). A system call that it does not list fails
with EPERM.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from danlu.errors import UsageError

_DEFAULT_PROFILE = Path(__file__).with_name("seccomp.json")
# Docker allows these only with CAP_SYS_NICE. Podman always does, because the kernel lets any
# process set its memory policy; hwloc (Open MPI), numactl and oneDNN need them.
_MEMORY_POLICY = ("get_mempolicy", "mbind", "set_mempolicy", "set_mempolicy_home_node")
# What uname(2) calls a machine, as Go (the profile's ``arches``) and libseccomp call it.
_ARCHITECTURES = {
    "aarch64": ("arm64", "SCMP_ARCH_AARCH64"),
    "armv7l": ("arm", "SCMP_ARCH_ARM"),
    "i686": ("x86", "SCMP_ARCH_X86"),
    "loongarch64": ("loong64", "SCMP_ARCH_LOONGARCH64"),
    "ppc64le": ("ppc64le", "SCMP_ARCH_PPC64LE"),
    "riscv64": ("riscv64", "SCMP_ARCH_RISCV64"),
    "s390x": ("s390x", "SCMP_ARCH_S390X"),
    "x86_64": ("amd64", "SCMP_ARCH_X86_64"),
}


class _SyscallArgument(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    index: int
    value: int
    op: str
    valueTwo: int = 0  # noqa: N815 - the runtime specification's name


class _RuleCondition(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What must hold (``includes``) or must not hold (``excludes``) for a rule to apply."""

    caps: tuple[str, ...] = ()
    arches: tuple[str, ...] = ()
    minKernel: str = ""  # noqa: N815


class _SyscallRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    action: str
    names: tuple[str, ...] = ()
    name: str = ""
    args: tuple[_SyscallArgument, ...] | None = None
    errnoRet: int | None = None  # noqa: N815
    errno: str = ""
    comment: str = ""
    includes: _RuleCondition | None = None
    excludes: _RuleCondition | None = None


class _ArchitectureFamily(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An architecture and those whose programs its kernel can also run."""

    architecture: str
    subArchitectures: tuple[str, ...] | None = None  # noqa: N815


class _SeccompProfile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A profile as Docker and Podman read it: the runtime's filter, with conditions."""

    defaultAction: str  # noqa: N815
    defaultErrnoRet: int | None = None  # noqa: N815
    defaultErrno: str = ""  # noqa: N815
    architectures: tuple[str, ...] = ()
    archMap: tuple[_ArchitectureFamily, ...] = ()  # noqa: N815
    flags: tuple[str, ...] = ()
    syscalls: tuple[_SyscallRule, ...] = ()


#: Made on import: msgspec crashes if two threads decode the same struct for the first time.
_DECODER = msgspec.json.Decoder(_SeccompProfile)


def load_filter(option: str, capabilities: Collection[str]) -> dict[str, Any] | None:
    """Return the filter for ``config.json`` that ``option`` selects, or None for no filter.

    ``option`` is empty or ``default`` for Docker's default profile, ``unconfined``, or the path of
    a profile. ``capabilities`` are the container's, because rules may depend on them. Raises
    :class:`UsageError` if the file cannot be read or is invalid.
    """
    if option == "unconfined":
        return None
    path = Path(option).expanduser() if option not in ("", "default") else _DEFAULT_PROFILE
    try:
        data = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the seccomp profile {path}: {error.strerror}") from error
    try:
        rendered = render_filter(data, capabilities)
    except (msgspec.MsgspecError, ValueError) as error:
        raise UsageError(
            f"invalid seccomp profile {path}: {error}",
            hint="profiles have the format that Docker and Podman read",
        ) from error
    # A profile of the user gets no additions.
    if path == _DEFAULT_PROFILE:
        rendered["syscalls"].append({"names": [*_MEMORY_POLICY], "action": "SCMP_ACT_ALLOW"})
    return rendered


def render_filter(
    data: bytes, capabilities: Collection[str], *, machine: str = "", release: str = ""
) -> dict[str, Any]:
    """Return the runtime's filter for a profile, with the rules whose conditions hold here.

    ``machine`` and ``release`` are uname(2)'s, by default this machine's. Raises
    :class:`ValueError` if the profile is invalid.
    """
    profile = _DECODER.decode(data)
    if profile.architectures and profile.archMap:
        raise ValueError("it has both `architectures` and `archMap`")
    uname = os.uname()
    architecture, native = _ARCHITECTURES.get(machine or uname.machine, ("", ""))
    kernel = _kernel_version(release or uname.release)
    families = [family for family in profile.archMap if family.architecture == native]
    rendered: dict[str, Any] = {
        "defaultAction": profile.defaultAction,
        "architectures": [
            *profile.architectures,
            *(name for family in families for name in (native, *(family.subArchitectures or ()))),
        ],
        "syscalls": [
            _render_rule(rule)
            for rule in profile.syscalls
            if _rule_applies(rule, capabilities, architecture, kernel)
        ],
    }
    default = _error_number(profile.defaultErrno, profile.defaultErrnoRet)
    if default is not None:
        rendered["defaultErrnoRet"] = default
    if profile.flags:
        rendered["flags"] = list(profile.flags)
    return rendered


def _rule_applies(
    rule: _SyscallRule, capabilities: Collection[str], own: str, kernel: tuple[int, ...]
) -> bool:
    needed, barred = rule.includes or _RuleCondition(), rule.excludes or _RuleCondition()
    if own in barred.arches or any(name in capabilities for name in barred.caps):
        return False
    if barred.minKernel and kernel >= _kernel_version(barred.minKernel):
        return False
    if needed.arches and own not in needed.arches:
        return False
    if needed.minKernel and kernel < _kernel_version(needed.minKernel):
        return False
    return all(name in capabilities for name in needed.caps)


def _render_rule(rule: _SyscallRule) -> dict[str, Any]:
    names = rule.names or ((rule.name,) if rule.name else ())
    if not names:
        raise ValueError("a rule names no system call")
    rendered: dict[str, Any] = {"names": list(names), "action": rule.action}
    if rule.args:
        rendered["args"] = [msgspec.to_builtins(argument) for argument in rule.args]
    number = _error_number(rule.errno, rule.errnoRet)
    if number is not None:
        rendered["errnoRet"] = number
    return rendered


def _error_number(name: str, number: int | None) -> int | None:
    """Return a rule's error number; a name (Podman) wins, because numbers differ by machine."""
    if not name:
        return number
    known: Mapping[str, int] = {text: value for value, text in errno.errorcode.items()}
    if name not in known:
        raise ValueError(f"unknown error {name}")
    return known[name]


def _kernel_version(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a kernel release."""
    return tuple(int(word) for word in re.findall(r"\d+", text)[:2])
