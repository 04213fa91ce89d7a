from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from danlu.errors import MachineError
from danlu.sandbox import runtime, runtime_spec
from danlu.sandbox.types import Mount, ProcessSpec, RuntimeHook
from tests.sandbox.engine_defaults import DOCKER_CAPABILITIES, MASKED, READ_ONLY


def write_runtime_log(tmp_path: Path, message: str) -> Path:
    path = tmp_path / "log"
    entry = {"level": "error", "msg": message, "time": "2026-01-01T00:00:00Z"}
    path.write_text(json.dumps({"level": "warning", "msg": "w"}) + f"\n{json.dumps(entry)}\n")
    return path


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ('exec: "x": executable file not found in $PATH: unknown', 127),
        ('exec: "/x": stat /x: no such file or directory: unknown', 127),
        ("exec /x: no such file or directory", 127),
        ('exec: "/etc": permission denied: unknown', 126),
        ("exec /x: exec format error", 126),
        ("executable file `x` not found in $PATH: No such file or directory", 127),
        ("error during container init: error mounting", 125),
        ("error mounting /x: no such file or directory", 125),
        ("error mounting /x: permission denied", 125),
        ("current working directory is outside of container mount namespace root", 125),
        ('chdir to cwd ("/x") set in config.json failed: permission denied', 125),
    ],
)
def test_program_that_did_not_start_has_a_shells_exit_code(
    tmp_path: Path, said: str, code: int
) -> None:
    log = write_runtime_log(tmp_path, f"unable to start container process: {said}")
    got, reason = runtime.interpret_exit(1, log, "x")
    assert got == code
    assert reason


def test_reason_is_the_last_error_and_no_warning(tmp_path: Path) -> None:
    log = write_runtime_log(tmp_path, "error mounting x")
    with log.open("a") as file:
        file.write('{"level": "warning", "msg": "exec /x: not found"}\nno json\n[1]\n')
    assert runtime.interpret_exit(1, log, "x") == (125, "error mounting x")


def test_program_that_ran_keeps_its_exit_code(tmp_path: Path) -> None:
    assert runtime.interpret_exit(1, tmp_path / "absent", "x") == (1, "")
    assert runtime.interpret_exit(-9, tmp_path / "absent", "x") == (137, "")
    assert runtime.interpret_exit(0, write_runtime_log(tmp_path, "late"), "x") == (0, "")


def test_missing_runtime_error_says_what_to_install() -> None:
    with pytest.raises(MachineError, match="no-such-runtime") as caught:
        runtime.find_runtime("no-such-runtime")
    assert "apt-get install runc" in caught.value.hint


def around(*, network: bool = True) -> runtime_spec.SpecContext:
    return runtime_spec.SpecContext(
        root=Path("/r"),
        devices=Path("/d"),
        network=network,
        terminal_group=None,
        fresh_sysfs=True,
        seccomp=None,
    )


def test_network_namespace_is_created_only_for_no_network() -> None:
    def kinds(network: bool) -> set[str]:
        config = runtime_spec.render_config(ProcessSpec(("x",)), (), around(network=network))
        return {item["type"] for item in config["linux"]["namespaces"]}

    assert kinds(True) == {"pid", "ipc", "uts", "mount"}
    assert kinds(False) == {"pid", "ipc", "uts", "mount", "network"}


def test_only_root_has_capabilities() -> None:
    for uid in (0, 1000):
        config = runtime_spec.render_config(ProcessSpec(("x",), uid=uid), (), around())
        held = config["process"]["capabilities"]
        assert bool(held["effective"]) is (uid == 0)
        assert "CAP_SYS_ADMIN" not in held["bounding"]
        assert "CAP_NET_RAW" not in held["bounding"]


def render(process: ProcessSpec | None = None, *mounts: Mount, **changes: Any) -> dict[str, Any]:
    context = msgspec.structs.replace(around(), **changes)
    return runtime_spec.render_config(process or ProcessSpec(("x",)), mounts, context)


def options_of(config: dict[str, Any]) -> dict[str, set[str]]:
    return {mount["destination"]: set(mount["options"]) for mount in config["mounts"]}


def test_capabilities_are_those_of_docker_without_raw_sockets() -> None:
    process = render()["process"]
    for kind in ("bounding", "effective", "permitted"):
        assert set(process["capabilities"][kind]) == DOCKER_CAPABILITIES - {"CAP_NET_RAW"}
    # sudo and ping of an image work (docs/architecture/sandbox.md).
    assert process["noNewPrivileges"] is False


def test_paths_of_the_kernel_are_hidden_or_read_only() -> None:
    linux = render()["linux"]
    assert set(linux["maskedPaths"]) == set(MASKED)
    assert set(linux["readonlyPaths"]) == set(READ_ONLY)


def test_filter_is_part_of_the_configuration_unless_it_is_disabled() -> None:
    assert render(seccomp={"defaultAction": "SCMP_ACT_ERRNO"})["linux"]["seccomp"] == {
        "defaultAction": "SCMP_ACT_ERRNO"
    }
    assert "seccomp" not in render()["linux"]


def test_standard_mounts_carry_no_devices_and_no_setuid_programs() -> None:
    mounts = options_of(render())
    restricted = {"nosuid", "nodev", "noexec"}
    for place in ("/proc", "/dev/shm", "/dev/mqueue", "/sys"):
        assert restricted <= mounts[place], place
    assert {"rbind", "nosuid", "nodev"} == mounts["/dev"]
    assert {"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"} == mounts["/dev/pts"]
    assert "mode=1777" in mounts["/dev/shm"]
    assert "ro" in mounts["/sys"]


def test_sysfs_of_the_machine_is_read_only_all_the_way_down() -> None:
    (shown,) = (item for item in render(fresh_sysfs=False)["mounts"] if item["source"] == "/sys")
    assert shown["destination"] == "/sys"
    assert {"rbind", "rro", "nosuid", "nodev", "noexec"} == set(shown["options"])


def test_terminals_belong_to_their_group_if_it_is_mapped() -> None:
    assert "gid=5" in options_of(render(terminal_group=5))["/dev/pts"]
    assert not any(option.startswith("gid=") for option in options_of(render())["/dev/pts"])


def test_size_of_shared_memory_is_set_only_if_given() -> None:
    assert "size=4096" in options_of(render(shm_size=4096))["/dev/shm"]
    assert not any(option.startswith("size=") for option in options_of(render())["/dev/shm"])


def test_container_joins_a_given_network() -> None:
    namespaces = render(network=False, namespace=Path("/run/n"))["linux"]["namespaces"]
    assert {"type": "network", "path": "/run/n"} in namespaces


def test_limits_and_hooks_are_set_only_if_given() -> None:
    assert "rlimits" not in render()["process"]
    limited = render(ProcessSpec(("x",), open_files=(10, 20)))["process"]["rlimits"]
    assert limited == [{"type": "RLIMIT_NOFILE", "soft": 10, "hard": 20}]
    assert "hooks" not in render()
    hooks = render(hooks={"createContainer": (RuntimeHook("/bin/h", ("h",)),)})["hooks"]
    assert json.loads(json.dumps(hooks)) == {"createContainer": [{"path": "/bin/h", "args": ["h"]}]}


def test_read_only_directories_are_so_all_the_way_down(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    mounts = options_of(
        render(
            None,
            Mount("/directory", tmp_path, readonly=True),
            Mount("/file", file, readonly=True),
            Mount("/missing", tmp_path / "missing", readonly=True),
            Mount("/writable", tmp_path),
            Mount("/memory", kind="tmpfs"),
            Mount("/kept", kind="tmpfs", readonly=True),
        )
    )
    assert {"rbind", "nodev", "ro", "rro"} <= mounts["/directory"]
    # crun rejects rro for files.
    for place in ("/file", "/missing"):
        assert "ro" in mounts[place]
        assert "rro" not in mounts[place]
    assert {"rbind", "nodev", "rw"} <= mounts["/writable"]
    assert {"nosuid", "nodev", "mode=1777"} == mounts["/memory"]
    assert {"nosuid", "nodev", "mode=1777", "ro"} == mounts["/kept"]


def test_restrictions_of_the_file_system_below_a_mount_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flags = os.ST_NOSUID | os.ST_RDONLY
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(f_flag=flags))
    mounts = options_of(render(None, Mount("/a", tmp_path), Mount("/b", tmp_path, readonly=True)))
    assert {"ro", "nosuid"} <= mounts["/a"]
    assert "noexec" not in mounts["/a"]
    # runc rejects an option that is given twice.
    (twice,) = (item for item in render(None, Mount("/b", tmp_path, readonly=True))["mounts"][-1:])
    assert twice["options"].count("ro") == 1


def test_mounts_keep_their_order_and_have_nodev() -> None:
    mounts = (Mount("/b", Path("/x"), readonly=True), Mount("/a", kind="tmpfs"))
    result = runtime_spec.render_config(ProcessSpec(("x",)), mounts, around())["mounts"][-2:]
    assert [mount["destination"] for mount in result] == ["/b", "/a"]
    assert "ro" in result[0]["options"]
    assert all("nodev" in mount["options"] for mount in result)
