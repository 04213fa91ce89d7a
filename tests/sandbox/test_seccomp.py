from __future__ import annotations

import errno
import platform
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest

from danlu.errors import UsageError
from danlu.sandbox.runtime_spec import CAPABILITIES
from danlu.sandbox.sandbox import Sandbox
from danlu.sandbox.seccomp import load_filter, render_filter
from danlu.sandbox.types import ProcessSpec, RootFilesystem
from tests.sandbox.elf import write_hello_32, write_system_call
from tests.sandbox.namespace_process import busybox

Forked = Callable[[Callable[[], Any]], Any]

NEW_USER_NAMESPACE = 0x10000000
#: Number on x86-64 and arguments of calls, and the error that Docker's default profile answers.
REFUSED = {
    "unshare": (272, (NEW_USER_NAMESPACE,), errno.EPERM),
    "clone of a user namespace": (56, (NEW_USER_NAMESPACE | 17,), errno.EPERM),
    "clone3": (435, (0, 0), errno.ENOSYS),
    "io_uring_setup": (425, (1, 0), errno.EPERM),
    "keyctl": (250, (0, 0), errno.EPERM),
    "add_key": (248, (0, 0), errno.EPERM),
    "perf_event_open": (298, (0, 0), errno.EPERM),
    "mount": (165, (0, 0, 0, 0), errno.EPERM),
    "userfaultfd": (323, (1,), errno.EPERM),
    "open_by_handle_at": (304, (0, 0), errno.EPERM),
    # The kernel refuses this too, to a process without CAP_SYS_ADMIN.
    "pivot_root": (155, (0, 0), errno.EPERM),
}
#: What ordinary programs use: memory policies, a debugger, asynchronous files.
ALLOWED = {
    "mbind": (237, (0, 0, 0, 0)),
    "set_mempolicy": (238, (0, 0, 0)),
    "ptrace": (101, (0,)),
    "process_vm_readv": (310, (1, 0, 0)),
    "memfd_create": (319, (0, 0)),
    "io_setup": (206, (1, 0)),
}


def names_of(found: dict[str, Any] | None, action: str) -> set[str]:
    assert found is not None
    rules = [rule for rule in found["syscalls"] if rule["action"] == action]
    return {name for rule in rules if "args" not in rule for name in rule["names"]}


def render(rules: list[dict[str, Any]], **more: Any) -> list[str]:
    data = msgspec.json.encode({"defaultAction": "SCMP_ACT_ERRNO", "syscalls": rules})
    result = render_filter(data, ("CAP_A",), **more)
    return [name for rule in result["syscalls"] for name in rule["names"]]


def rule(name: str, **conditions: Any) -> dict[str, Any]:
    return {"names": [name], "action": "SCMP_ACT_ALLOW", **conditions}


def test_default_profile_denies_unlisted_system_calls() -> None:
    result = load_filter("", CAPABILITIES)
    assert result is not None
    assert (result["defaultAction"], result["defaultErrnoRet"]) == ("SCMP_ACT_ERRNO", errno.EPERM)
    allowed = names_of(result, "SCMP_ACT_ALLOW")
    assert {"read", "chroot", "mbind", "ptrace"} <= allowed
    assert not allowed & {"unshare", "mount", "setns", "clone", "io_uring_setup", "keyctl", "bpf"}
    assert load_filter("default", CAPABILITIES) == result


def test_rules_depend_on_capabilities() -> None:
    assert "unshare" in names_of(
        load_filter("", (*CAPABILITIES, "CAP_SYS_ADMIN")), "SCMP_ACT_ALLOW"
    )
    rules = [
        rule("has", includes={"caps": ["CAP_A"]}),
        rule("lacks", includes={"caps": ["CAP_A", "CAP_B"]}),
        rule("barred", excludes={"caps": ["CAP_A"]}),
        rule("free", excludes={"caps": ["CAP_B"]}),
    ]
    assert render(rules) == ["has", "free"]


def test_rules_depend_on_the_machine_and_the_kernel() -> None:
    rules = [
        rule("arm", includes={"arches": ["arm64"]}),
        rule("no-arm", excludes={"arches": ["arm64"]}),
        rule("new", includes={"minKernel": "5.10"}),
        rule("old", excludes={"minKernel": "5.10"}),
    ]
    assert render(rules, machine="aarch64", release="5.9.1-x") == ["arm", "old"]
    assert render(rules, machine="x86_64", release="6.1+") == ["no-arm", "new"]


@pytest.mark.parametrize(
    ("machine", "architectures"),
    [
        ("x86_64", ["SCMP_ARCH_X86_64", "SCMP_ARCH_X86", "SCMP_ARCH_X32"]),
        ("aarch64", ["SCMP_ARCH_AARCH64", "SCMP_ARCH_ARM"]),
        ("riscv64", ["SCMP_ARCH_RISCV64"]),
        ("unknown", []),
    ],
)
def test_32_bit_architectures_are_included(machine: str, architectures: list[str]) -> None:
    import danlu.sandbox.seccomp as module

    data = Path(module.__file__).with_name("seccomp.json").read_bytes()
    assert render_filter(data, (), machine=machine)["architectures"] == architectures


@pytest.mark.parametrize(
    ("machine", "name"),
    [
        ("aarch64", "arm64"),
        ("armv7l", "arm"),
        ("i686", "x86"),
        ("loongarch64", "loong64"),
        ("ppc64le", "ppc64le"),
        ("riscv64", "riscv64"),
        ("s390x", "s390x"),
        ("x86_64", "amd64"),
    ],
)
def test_rules_name_machines_as_go_does(machine: str, name: str) -> None:
    rules = [rule("own", includes={"arches": [name]}), rule("other", excludes={"arches": [name]})]
    assert render(rules, machine=machine) == ["own"]


def test_podman_profile_may_name_errors() -> None:
    data = b"""{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrno": "ENOSYS", "defaultErrnoRet": 1,
        "syscalls": [
            {"names": ["x"], "action": "SCMP_ACT_ERRNO", "errno": "EPERM", "args": null}]}"""
    result = render_filter(data, ())
    assert result["defaultErrnoRet"] == errno.ENOSYS
    assert result["syscalls"] == [{"names": ["x"], "action": "SCMP_ACT_ERRNO", "errnoRet": 1}]


@pytest.mark.parametrize(
    "text",
    [
        "nothing",
        "{}",
        '{"defaultAction": "SCMP_ACT_ALLOW", "unknown": 1}',
        '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"action": "SCMP_ACT_ALLOW"}]}',
        '{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrno": "EWHAT"}',
    ],
)
def test_invalid_profile_is_rejected(tmp_path: Path, text: str) -> None:
    path = tmp_path / "profile.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="invalid seccomp profile"):
        load_filter(str(path), ())


def test_missing_profile_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the seccomp profile"):
        load_filter(str(tmp_path / "none.json"), ())


def test_unconfined_disables_the_filter() -> None:
    assert load_filter("unconfined", CAPABILITIES) is None


# -- inside --------------------------------------------------------------------------------------

needs_x86 = pytest.mark.skipif(platform.machine() != "x86_64", reason="needs an x86-64 machine")


def run_inside(home: Path, program: str, *, seccomp: str = "") -> tuple[int, list[str]]:
    lines: list[str] = []
    work = home / "work"
    work.mkdir(exist_ok=True)

    async def main() -> int:
        sandbox = Sandbox(work, seccomp=seccomp)
        process = ProcessSpec(("/bin/sh", "-c", program), {"PATH": "/bin"})
        return await sandbox.run(
            process, RootFilesystem((home / "base",)), network=False, on_line=lines.append
        )

    return anyio.run(main), lines


def answers(home: Path, number: int, arguments: tuple[int, ...]) -> tuple[int, int]:
    """The error number of a call under the default profile, and under none."""
    base = busybox(home / "base")
    write_system_call(base / "bin/call", number, *arguments)
    return run_inside(home, "call")[0], run_inside(home, "call", seccomp="unconfined")[0]


@pytest.mark.real
@pytest.mark.needs("busybox")
@needs_x86
@pytest.mark.parametrize("call", REFUSED)
def test_system_call_is_denied_like_docker_does(
    run_in_namespace: Forked, home: Path, call: str
) -> None:
    number, arguments, expected = REFUSED[call]
    confined, free = run_in_namespace(lambda: answers(home, number, arguments))
    assert confined == expected
    assert free != expected or call == "pivot_root"


@pytest.mark.real
@pytest.mark.needs("busybox")
@needs_x86
@pytest.mark.parametrize("call", ALLOWED)
def test_ordinary_system_call_reaches_the_kernel(
    run_in_namespace: Forked, home: Path, call: str
) -> None:
    number, arguments = ALLOWED[call]
    confined, free = run_in_namespace(lambda: answers(home, number, arguments))
    assert confined == free != errno.EPERM


@pytest.mark.real
@pytest.mark.needs("busybox")
@needs_x86
def test_a_32_bit_program_runs(run_in_namespace: Forked, home: Path) -> None:
    def act() -> tuple[int, list[str]]:
        write_hello_32(busybox(home / "base") / "bin/hello")
        return run_inside(home, "hello")

    assert run_in_namespace(act) == (0, ["32 bits"])


@pytest.mark.real
@pytest.mark.needs("busybox")
@pytest.mark.parametrize(("option", "mode"), [("", "2"), ("unconfined", "0")])
def test_profile_can_be_disabled(
    run_in_namespace: Forked, home: Path, option: str, mode: str
) -> None:
    def act() -> tuple[int, list[str]]:
        busybox(home / "base")
        return run_inside(home, "grep ^Seccomp: /proc/self/status", seccomp=option)

    code, lines = run_in_namespace(act)
    assert (code, lines[0].split()[1]) == (0, mode)


@pytest.mark.real
@pytest.mark.needs("busybox")
def test_custom_profile_is_used(run_in_namespace: Forked, home: Path) -> None:
    def act() -> tuple[int, list[str]]:
        busybox(home / "base")
        profile = home / "profile.json"
        profile.write_text(
            '{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["mkdir", "mkdirat"],'
            ' "action": "SCMP_ACT_ERRNO", "errnoRet": 28}]}'
        )
        return run_inside(home, "mkdir /x", seccomp=str(profile))

    code, lines = run_in_namespace(act)
    assert code == 1
    assert "No space left on device" in lines[0]
