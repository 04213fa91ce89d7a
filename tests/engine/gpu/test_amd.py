"""AMD's GPUs: found, given, measured and refused, from a directory like that of its driver."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.engine.gpu.provider import (
    count_gpus,
    describe_gpu_access,
    find_hidden_gpus,
    list_gpu_choices,
    provide_gpus,
)
from danlu.engine.gpu.selection import parse_gpus
from danlu.engine.gpu.usage import GpuMeter, GpuUsage
from danlu.errors import MachineError
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.types import ContainerEdits, DeviceNode
from danlu.util.config import Configuration
from tests.engine.gpu.driver_tree import make_amd_driver, make_driver


def configure(tmp_path: Path) -> Configuration:
    driver = make_amd_driver(tmp_path / "driver")
    return Configuration(gpu_driver_root=str(driver), cdi_spec_dirs="")


def list_nodes(gpus: str, config: Configuration, **environ: str) -> list[str]:
    edits = provide_gpus(parse_gpus(gpus), LayerView([]), config, environ)
    return [node.path for node in edits.devices]


@pytest.mark.parametrize(
    ("gpus", "minors"),
    [("all", (128, 129)), ("1", (128,)), ("device=1", (129,)), ("GPU-00000000000000a2", (129,))],
)
def test_selected_gpus_get_their_nodes(tmp_path: Path, gpus: str, minors: tuple[int, ...]) -> None:
    expected = ["/dev/kfd", *(f"/dev/dri/renderD{minor}" for minor in minors)]
    assert list_nodes(gpus, configure(tmp_path)) == expected


def test_gpus_are_counted_and_described(tmp_path: Path) -> None:
    config = configure(tmp_path)
    assert count_gpus(config, {}) == 2
    assert count_gpus(config, {"ROCR_VISIBLE_DEVICES": "1"}) == 1
    assert list_nodes("all", config, ROCR_VISIBLE_DEVICES="1")[1:] == ["/dev/dri/renderD129"]
    assert describe_gpu_access(config) == "3 device nodes; the image has the libraries (ROCm)"


def test_gpu_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    config = configure(tmp_path)
    with pytest.raises(MachineError, match="this machine has 2 GPUs"):
        list_nodes("3", config)
    with pytest.raises(MachineError, match="no GPU 5 on this machine"):
        list_nodes("device=5", config)


def test_missing_node_is_an_error_with_a_remedy(tmp_path: Path) -> None:
    config = configure(tmp_path)
    (tmp_path / "driver/dev/dri/renderD129").unlink()
    assert list_nodes("device=0", config)
    with pytest.raises(MachineError, match="renderD129 does not exist") as caught:
        list_nodes("all", config)
    assert "modprobe amdgpu" in caught.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root: it creates device nodes")
def test_node_of_a_group_is_refused_to_a_container_without_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = configure(tmp_path)
    node = tmp_path / "driver/dev/kfd"
    node.chmod(0o660)
    os.chown(node, 0, 109)
    edits = provide_gpus(parse_gpus("1"), LayerView([]), config, {})
    assert 109 in edits.groups
    monkeypatch.setattr("danlu.sandbox.userns.is_rootless", lambda: True)
    with pytest.raises(MachineError, match="kfd is open only to its group") as caught:
        list_nodes("1", config)
    assert 'MODE="0666"' in caught.value.hint


def test_gpus_of_nvidia_come_first(tmp_path: Path) -> None:
    config = configure(tmp_path)
    make_driver(tmp_path / "driver", gpus=1)
    assert len(list_gpu_choices(tmp_path / "driver")) == 1
    assert "/dev/nvidia0" in list_nodes("all", config)


def test_usage_is_what_the_driver_says(tmp_path: Path) -> None:
    meter = GpuMeter(tmp_path / "no-nvidia", make_amd_driver(tmp_path / "driver"))
    total = 192 << 30
    assert meter.measure() == [
        GpuUsage(0, "aqua_vanjaram", 0.17, 1 << 30, total),
        GpuUsage(1, "aqua_vanjaram", 0.27, 2 << 30, total, {4711: 3 << 20}),
    ]
    assert [usage.index for usage in meter.measure([1])] == [1]


@pytest.mark.parametrize(
    ("environment", "seen"),
    [
        ({}, ""),
        ({"CUDA_VISIBLE_DEVICES": "0,1"}, ""),
        ({"CUDA_VISIBLE_DEVICES": "1"}, "programs see 1 of 2 GPUs: CUDA_VISIBLE_DEVICES=1 hides"),
        ({"CUDA_VISIBLE_DEVICES": ""}, "programs see 0 of 2 GPUs"),
        ({"HIP_VISIBLE_DEVICES": "-1"}, "programs see 0 of 2 GPUs"),
    ],
)
def test_variable_that_hides_gpus_is_named(environment: dict[str, str], seen: str) -> None:
    names = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia1", "/dev/nvidia-uvm")
    edits = ContainerEdits(devices=tuple(DeviceNode(name, Path("/dev/null")) for name in names))
    warning = find_hidden_gpus(edits, environment)
    assert warning.startswith(seen)
    assert bool(warning) == bool(seen)
