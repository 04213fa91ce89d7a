from __future__ import annotations

import json
from pathlib import Path

import pytest

from danlu.errors import MachineError
from danlu.sandbox import runtime, runtime_spec
from danlu.sandbox.types import Mount, ProcessSpec


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


def test_mounts_keep_their_order_and_have_nodev() -> None:
    mounts = (Mount("/b", Path("/x"), readonly=True), Mount("/a", kind="tmpfs"))
    result = runtime_spec.render_config(ProcessSpec(("x",)), mounts, around())["mounts"][-2:]
    assert [mount["destination"] for mount in result] == ["/b", "/a"]
    assert "ro" in result[0]["options"]
    assert all("nodev" in mount["options"] for mount in result)
