"""The driver's version is compared with the lock, with a fake ``/proc/driver/nvidia``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from danlu.diagnosis.doctor import run_checks
from danlu.engine.contexts import LOCAL
from danlu.environment.lock import FunctionLock, Lock, LockedBase, LockedPackage
from danlu.errors import MachineError
from danlu.graph.progress import Message
from danlu.project.driver_check import check_driver, check_image_driver
from danlu.resolve.lockfile import write_lock
from danlu.sandbox.nvidia_driver import NvidiaDriver, read_driver
from danlu.util.config import Configuration
from danlu.util.paths import Paths

CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  {}  Sun May 12 19:39:15 UTC 2024\n"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (x@y)\n"


def make_driver(root: Path, text: str) -> None:
    directory = root / "proc/driver/nvidia"
    device = directory / "gpus/0000:01:00.0"
    device.mkdir(parents=True)
    (directory / "version").write_text(
        f"{text}GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"
    )
    (device / "information").write_text("Model: \t\t NVIDIA A100-SXM4-80GB\nIRQ:   \t\t 54\n")


def configure_root(root: Path) -> Configuration:
    return Configuration(gpu_driver_root=str(root))


@dataclass
class LockedProject:
    """The part of a project that the check needs."""

    lock_path: Path
    function: str = "build"


@pytest.fixture
def project(tmp_path: Path) -> Any:
    package = LockedPackage(
        "torch",
        "2.13.0+cu130",
        "index",
        "torch-2.13.0+cu130-cp311-cp311-linux_x86_64.whl",
        "0a" * 32,
    )
    locked = FunctionLock("linux/amd64", LockedBase("x", 0), packages=(package,))
    path = tmp_path / "danlu.lock"
    path.write_text(write_lock(Lock({"build": locked})))
    return LockedProject(path)


@pytest.mark.parametrize(("text", "version"), [(CLOSED, "535.183.01"), (OPEN, "580.65.06")])
def test_driver_is_read_from_proc(tmp_path: Path, text: str, version: str) -> None:
    make_driver(tmp_path, text.format(version))
    assert read_driver(tmp_path) == NvidiaDriver(version, ("NVIDIA A100-SXM4-80GB",))


@pytest.mark.parametrize("text", ["", "nonsense", "Kernel Module  \x00\xff"])
def test_unreadable_version_counts_as_no_driver(tmp_path: Path, text: str) -> None:
    assert read_driver(tmp_path) is None
    make_driver(tmp_path, text)
    assert read_driver(tmp_path) is None


def test_old_driver_is_a_warning_with_a_remedy(tmp_path: Path, project: Any) -> None:
    make_driver(tmp_path, CLOSED.format("535.183.01"))
    output: list[Any] = []
    check_driver(project, output.append, required=False, config=configure_root(tmp_path))
    (message,) = output
    assert isinstance(message, Message)
    assert message.text == (
        "warning: driver 535.183.01 supports CUDA 12.2; torch 2.13.0+cu130 needs CUDA 13.0;"
        " install driver 580.65.06 or newer, or use a version of torch that is built for CUDA 12"
    )


def test_old_driver_is_an_error_if_gpus_are_required(tmp_path: Path, project: Any) -> None:
    make_driver(tmp_path, CLOSED.format("535.183.01"))
    with pytest.raises(MachineError, match=r"driver 535\.183\.01 supports CUDA 12\.2") as caught:
        check_driver(project, lambda event: None, required=True, config=configure_root(tmp_path))
    assert "580.65.06" in caught.value.hint
    assert caught.value.exit_code == 4


@pytest.mark.parametrize("text", [None, OPEN.format("580.65.06")])
def test_new_driver_or_none_is_silent(tmp_path: Path, project: Any, text: str | None) -> None:
    if text:
        make_driver(tmp_path, text)
    output: list[Any] = []
    check_driver(project, output.append, required=True, config=configure_root(tmp_path))
    assert not output


NVIDIA_IMAGE = "cuda>=12.4 brand=tesla,driver>=470,driver<471 brand=unknown,driver>=535,driver<536"


@pytest.mark.parametrize(
    ("driver", "variables", "message"),
    [
        (
            "525.60.13",
            {"NVIDIA_REQUIRE_CUDA": NVIDIA_IMAGE},
            "CUDA 12.0; the image needs cuda>=12.4",
        ),
        ("525.60.13", {"NVIDIA_REQUIRE_CUDA": "cuda>=12.0"}, ""),
        ("470.82.01", {"NVIDIA_REQUIRE_CUDA": "cuda>=12.0"}, "the image needs cuda>=12.0"),
        ("550.54.14", {"NVIDIA_REQUIRE_CUDA": NVIDIA_IMAGE}, ""),
        # The driver of a data center with the image's compatibility libraries.
        ("535.183.01", {"NVIDIA_REQUIRE_CUDA": NVIDIA_IMAGE}, ""),
        (
            "525.60.13",
            {"NVIDIA_REQUIRE_CUDA": NVIDIA_IMAGE, "NVIDIA_DISABLE_REQUIRE": "true"},
            "",
        ),
        (
            "525.60.13",
            {"NVIDIA_REQUIRE_A": "cuda>=11.0", "NVIDIA_REQUIRE_B": "driver>=530"},
            "driver>=530",
        ),
        ("525.60.13", {"NVIDIA_REQUIRE_CUDA": "arch>=9.9"}, ""),
        ("525.60.13", {"NVIDIA_REQUIRE_CUDA": "nonsense, ="}, ""),
        ("525.60.13", {"OTHER": "cuda>=99.0"}, ""),
    ],
)
def test_images_say_which_driver_they_need(
    tmp_path: Path, driver: str, variables: dict[str, str], message: str
) -> None:
    make_driver(tmp_path, CLOSED.format(driver))
    settings = configure_root(tmp_path)
    values = [f"{name}={value}" for name, value in variables.items()]
    image = json.dumps({"config": {"Env": values}}).encode()
    output: list[Any] = []
    check_image_driver(image, output.append, required=False, config=settings)
    if not message:
        assert output == []
        check_image_driver(image, output.append, required=True, config=settings)
        return
    assert message in output[0].text
    with pytest.raises(MachineError, match=r"^driver .* the image needs ") as caught:
        check_image_driver(image, output.append, required=True, config=settings)
    assert "driver" in caught.value.hint
    assert caught.value.exit_code == 4


def test_doctor_shows_driver_cuda_devices_and_conflicts(
    tmp_path: Path, project: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_driver(tmp_path, CLOSED.format("535.183.01"))
    monkeypatch.setenv("DANLU_GPU_DRIVER_ROOT", str(tmp_path))
    monkeypatch.setenv("DANLU_CDI_SPEC_DIRS", str(tmp_path))
    monkeypatch.setattr("danlu.sandbox.doctor.run_checks", lambda paths: [])
    monkeypatch.chdir(tmp_path)
    checks = run_checks(Paths.of({"DANLU_HOME": str(tmp_path / "home")}), LOCAL)
    results = {check.name: check for check in checks}
    driver = results["NVIDIA driver"]
    assert (driver.ok, driver.detail) == (
        True,
        "535.183.01, supports CUDA 12.2; NVIDIA A100-SXM4-80GB",
    )
    gpus = results["GPUs in environments"]
    assert not gpus.ok
    assert gpus.detail == "libcuda.so of the loaded driver 535.183.01 was not found"
    assert not results["CUDA of danlu.lock"].ok
    assert "needs CUDA 13.0" in results["CUDA of danlu.lock"].detail


def test_doctor_without_a_driver_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANLU_GPU_DRIVER_ROOT", str(tmp_path))
    monkeypatch.setattr("danlu.sandbox.doctor.run_checks", lambda paths: [])
    checks = run_checks(Paths.of({"DANLU_HOME": str(tmp_path / "home")}), LOCAL)
    assert {check.name: check.ok for check in checks}["NVIDIA driver"]
