"""Specs of the Container Device Interface: read, chosen from, refused."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from danlu.engine.gpu.cdi import read_cdi_devices, select_cdi_edits
from danlu.engine.gpu.selection import parse_gpus
from danlu.errors import MachineError
from danlu.sandbox.nvidia_driver import NvidiaGpu
from danlu.sandbox.types import ContainerEdits, RuntimeHook

GPUS = [NvidiaGpu(index, f"GPU-{index}{index}a1b2c3", index, "NVIDIA H100") for index in range(2)]


def make_spec(**fields: Any) -> dict[str, Any]:
    return {
        "cdiVersion": "0.5.0",
        "kind": "nvidia.com/gpu",
        "devices": [make_device("0"), make_device("1"), make_device("all", "nvidia0", "nvidia1")],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "deviceNodes": [{"path": "/dev/nvidiactl", "hostPath": "/dev/null"}],
            "mounts": [
                {
                    "hostPath": "/etc/passwd",
                    "containerPath": "/usr/bin/nvidia-smi",
                    "options": ["ro"],
                }
            ],
            "hooks": [
                {
                    "hookName": "createContainer",
                    "path": "/usr/bin/nvidia-cdi-hook",
                    "args": ["nvidia-cdi-hook", "update-ldcache"],
                }
            ],
        },
        **fields,
    }


def make_device(name: str, *nodes: str) -> dict[str, Any]:
    # Every machine has /dev/null.
    paths = [f"/dev/{node}" for node in nodes or (f"nvidia{name}",)]
    results = [{"path": path, "hostPath": "/dev/null"} for path in paths]
    return {"name": name, "containerEdits": {"deviceNodes": results}}


def write_spec(directory: Path, spec: Any, name: str = "nvidia.json") -> Path:
    directory.mkdir(exist_ok=True)
    (directory / name).write_text(json.dumps(spec))
    return directory


def select(directory: Path, gpus: str, **environ: str) -> ContainerEdits:
    return select_cdi_edits(parse_gpus(gpus), read_cdi_devices([directory]), GPUS, environ)


def list_nodes(edits: ContainerEdits) -> list[str]:
    return sorted(node.path.removeprefix("/dev/nvidia") for node in edits.devices)


def test_edits_of_devices_and_of_the_spec_are_applied(tmp_path: Path) -> None:
    edits = select(write_spec(tmp_path / "cdi", make_spec()), "1")
    assert list_nodes(edits) == ["0", "ctl"]
    assert edits.environment == {"NVIDIA_VISIBLE_DEVICES": "void"}
    (mount,) = edits.mounts
    assert (mount.target, str(mount.source), mount.readonly) == (
        "/usr/bin/nvidia-smi",
        "/etc/passwd",
        True,
    )
    hook = RuntimeHook("/usr/bin/nvidia-cdi-hook", ("nvidia-cdi-hook", "update-ldcache"))
    assert edits.hooks == {"createContainer": (hook,)}


@pytest.mark.parametrize(
    ("gpus", "nodes"),
    [
        ("all", ["0", "1", "ctl"]),
        ("2", ["0", "1", "ctl"]),
        ("device=1", ["1", "ctl"]),
        # A spec with indexes, and the UUID of the driver.
        ("GPU-11a1b2c3", ["1", "ctl"]),
    ],
)
def test_devices_are_selected(tmp_path: Path, gpus: str, nodes: list[str]) -> None:
    assert list_nodes(select(write_spec(tmp_path / "cdi", make_spec()), gpus)) == nodes


def test_all_of_a_spec_that_lacks_a_gpu_is_refused(tmp_path: Path) -> None:
    directory = write_spec(tmp_path / "cdi", make_spec(devices=[make_device("all", "nvidia0")]))
    with pytest.raises(MachineError, match="describes 1 of the 2 GPUs") as caught:
        select(directory, "all")
    assert "nvidia-ctk cdi generate" in caught.value.hint


def test_batch_system_limits_all(tmp_path: Path) -> None:
    directory = write_spec(tmp_path / "cdi", make_spec())
    assert list_nodes(select(directory, "all", CUDA_VISIBLE_DEVICES="1")) == ["1", "ctl"]


def test_spec_with_uuids_knows_indexes(tmp_path: Path) -> None:
    devices = [make_device(gpu.uuid, f"nvidia{gpu.minor}") for gpu in GPUS]
    directory = write_spec(tmp_path / "cdi", make_spec(devices=devices))
    assert list_nodes(select(directory, "device=1")) == ["1", "ctl"]
    assert list_nodes(select(directory, "all")) == ["0", "1", "ctl"]


def test_instances_are_chosen_by_name_only(tmp_path: Path) -> None:
    devices = [make_device("0"), make_device("0:1", "nvidia0", "nvidia-caps/nvidia-cap12")]
    directory = write_spec(tmp_path / "cdi", make_spec(devices=devices))
    assert list_nodes(select(directory, "1")) == ["0", "ctl"]
    assert list_nodes(select(directory, "0:1")) == ["-caps/nvidia-cap12", "0", "ctl"]


def test_yaml_of_the_toolkit_is_read(tmp_path: Path) -> None:
    # As nvidia-ctk 1.20 writes it.
    (tmp_path / "nvidia.yaml").write_text(
        "---\ncdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n    - name: all\n"
        "      containerEdits:\n        deviceNodes:\n            - path: /dev/nvidia0\n"
        "              hostPath: /dev/null\n              major: 195\n              fileMode: 438\n"
        "              permissions: rwm\ncontainerEdits:\n    env:\n"
        "        - NVIDIA_VISIBLE_DEVICES=void\n    hooks:\n"
        "        - hookName: createContainer\n          path: /usr/bin/nvidia-cdi-hook\n"
        "          args:\n            - nvidia-cdi-hook\n            - update-ldcache\n"
        "          env:\n            - NVIDIA_CTK_DEBUG=false\n"
    )
    edits = select_cdi_edits(parse_gpus("all"), read_cdi_devices([tmp_path]), GPUS[:1], {})
    assert [(node.path, node.mode) for node in edits.devices] == [("/dev/nvidia0", 0o666)]
    assert edits.hooks["createContainer"][0].env == ("NVIDIA_CTK_DEBUG=false",)


def test_later_directory_wins(tmp_path: Path) -> None:
    first = write_spec(tmp_path / "etc", make_spec())
    second = write_spec(tmp_path / "run", make_spec(devices=[make_device("0", "nvidia7")]))
    devices = read_cdi_devices([first, tmp_path / "missing", second])
    assert sorted(devices) == ["0", "1", "all"]
    assert [node.path for node in devices["0"].edits.devices] == ["/dev/nvidia7"]


def test_device_of_two_files_is_an_error(tmp_path: Path) -> None:
    write_spec(tmp_path, make_spec(), "a.json")
    write_spec(tmp_path, make_spec(), "b.json")
    with pytest.raises(MachineError, match=r"b\.json: nvidia\.com/gpu=0 is also in .*a\.json"):
        read_cdi_devices([tmp_path])


def test_specs_of_other_vendors_do_not_matter(tmp_path: Path) -> None:
    write_spec(tmp_path, {"kind": "amd.com/gpu", "devices": 7}, "amd.json")
    assert read_cdi_devices([tmp_path]) == {}
    (tmp_path / "broken.yaml").write_text("{")
    write_spec(tmp_path, make_spec())
    assert "0" in read_cdi_devices([tmp_path])


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "nvidia.json")
    with pytest.raises(MachineError, match=r"nvidia\.json: not a file"):
        read_cdi_devices([tmp_path])


def test_missing_file_names_spec_and_remedy(tmp_path: Path) -> None:
    spec = make_spec()
    spec["containerEdits"]["mounts"][0]["hostPath"] = "/usr/lib/libcuda.so.1.2.3"
    with pytest.raises(
        MachineError, match=r"nvidia\.json: /usr/lib/libcuda\.so\.1\.2\.3 does not"
    ) as caught:
        select(write_spec(tmp_path, spec), "all")
    assert "nvidia-ctk cdi generate" in caught.value.hint
    assert caught.value.exit_code == 4


def edit(field: str, **values: Any) -> dict[str, Any]:
    return make_spec(containerEdits={field: [values]})


@pytest.mark.parametrize(
    ("spec", "reason"),
    [
        ([], "Expected `object`"),
        (make_spec(devices={}), "Expected `array`"),
        (make_spec(devices=[{"name": 7}]), "Expected `str`"),
        (make_spec(devices=[{"name": "../0"}]), "invalid device name"),
        (make_spec(containerEdits={"env": ["NO VALUE"]}), "invalid variable"),
        (make_spec(containerEdits={"env": ["A=\0"]}), "invalid variable"),
        (edit("deviceNodes", path="dev/nvidia0"), "invalid path"),
        (edit("deviceNodes", path="/dev/../etc/passwd"), "invalid path"),
        (edit("deviceNodes", path="/etc/passwd"), "invalid device path"),
        (edit("deviceNodes", path="/dev/x", hostPath="x"), "invalid path"),
        (edit("deviceNodes", path="/dev/x", type="p"), "invalid device type"),
        (edit("deviceNodes", path="/dev/x", uid=-1), "invalid mode or owner"),
        (edit("mounts", hostPath="/a", containerPath="b"), "invalid path"),
        (edit("mounts", hostPath="a", containerPath="/b"), "invalid path"),
        (edit("mounts", hostPath="/a", containerPath="/../b"), "invalid path"),
        (edit("mounts", hostPath="/a", containerPath="/proc/x"), "invalid mount target"),
        (edit("mounts", hostPath="/a", containerPath="/"), "invalid mount target"),
        (edit("mounts", hostPath="/a", containerPath="/b", options="ro"), "Expected `array`"),
        (edit("hooks", hookName="prestart", path="/usr/bin/nvidia-ctk"), "invalid hook name"),
        (edit("hooks", hookName="poststop", path="nvidia-ctk"), "invalid path"),
        (edit("hooks", hookName="createContainer", path="/bin/sh"), "hook /bin/sh is not run"),
        (edit("hooks", hookName="poststop", path="/nvidia-ctk", timeout=0), "timeout"),
        (make_spec(containerEdits={"additionalGids": [-1]}), "invalid group"),
        (make_spec(containerEdits={"netDevices": [{}]}), "not supported"),
    ],
)
def test_invalid_spec_is_an_error_naming_the_file(tmp_path: Path, spec: Any, reason: str) -> None:
    with pytest.raises(MachineError) as caught:
        read_cdi_devices([write_spec(tmp_path, spec)])
    assert caught.value.message.startswith(f"{tmp_path}/nvidia.json: invalid CDI spec: ")
    assert reason in caught.value.message
    assert caught.value.exit_code == 4


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("nvidia.json", b"{" * 100_000),
        ("nvidia.json", b"\xff"),
        ("nvidia.json", b" " * (5 << 20)),
        ("nvidia.yaml", b"[" * 100_000),
        ("nvidia.yaml", b"kind: [nvidia.com/gpu"),
        ("nvidia.yaml", b"!!python/object/apply:os.system [ls]"),
        (
            "nvidia.yaml",
            b"a: &a ["
            + b"1," * 100
            + b"]\n"
            + b"".join(b"%c: &%c [%s]\n" % (c, c, b"*%c," % (c - 1) * 100) for c in b"bcdefg"),
        ),
    ],
)
def test_hostile_file_is_an_error_naming_it(tmp_path: Path, name: str, data: bytes) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(MachineError, match=name):
        read_cdi_devices([tmp_path])
