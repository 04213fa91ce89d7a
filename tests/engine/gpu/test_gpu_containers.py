"""GPUs in real containers, with a simulated driver of files and nodes of this machine."""

from __future__ import annotations

import json
import os
import platform
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from danlu.engine.gpu.provider import provide_gpus
from danlu.engine.gpu.selection import parse_gpus
from danlu.errors import MachineError
from danlu.jobs.local import container_engine
from danlu.sandbox import _linux
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.ld_cache import CachedLibrary, native_flags, render_cache
from danlu.sandbox.types import ContainerExit, ResourceLimits
from danlu.util.config import Configuration
from danlu.util.paths import Paths
from tests.conftest import Danlu
from tests.engine.gpu.driver_tree import (
    LIBRARY_DIRECTORY,
    VERSION,
    find_system_library,
    make_amd_driver,
    make_driver,
)
from tests.engine.test_embedded import prepare, run
from tests.jobs.containers.engine_rig import EngineRig, run_within
from tests.sandbox.namespace_process import run_inside

pytestmark = [pytest.mark.real, pytest.mark.needs("busybox", "root"), pytest.mark.timeout(120)]

Forked = Callable[[Callable[[], Any]], Any]

_LOADERS = {"x86_64": "lib64/ld-linux-x86-64.so.2", "aarch64": "lib/ld-linux-aarch64.so.1"}
LOADER = _LOADERS.get(platform.machine(), "")
_MS_RDONLY = 1
LIST_NODES = "cd /dev; ls -d nvidia*; head -c 3 nvidia0 | wc -c"


def configure(home: Path) -> Configuration:
    driver, specs = str(home / "driver"), str(home / "cdi")
    return Configuration(gpu_driver_root=driver, cdi_spec_dirs=specs)


def run_with_gpus(home: Path, *args: str, gpus: str = "all", **more: Any) -> tuple[int, str]:
    """Run a program with GPUs; must be called in a namespace."""
    edits = provide_gpus(parse_gpus(gpus), LayerView([prepare(home)]), configure(home), {})
    return run(home, *args, edits=edits, **more)


def add_loader(base: Path) -> None:
    """Add the dynamic loader of this machine to an image, and a program that it loads."""
    directory = base / LIBRARY_DIRECTORY
    directory.mkdir(parents=True)
    (base / LOADER).parent.mkdir(exist_ok=True)
    shutil.copy(Path("/", LOADER).resolve(), base / LOADER)
    shutil.copy(Path("/", LIBRARY_DIRECTORY, "libc.so.6").resolve(), directory / "libc.so.6")
    shutil.copy(Path("/bin/true").resolve(), base / "bin/dynamic")
    (base / "opt").mkdir()
    shutil.copy(find_system_library(), base / "opt/libcached.so.1")
    cached = CachedLibrary("libcached.so.1", "/opt/libcached.so.1", native_flags())
    (base / "etc/ld.so.cache").write_bytes(render_cache([cached]))


def list_loaded_libraries(home: Path) -> str:
    """Return where the dynamic loader finds three libraries, two of which are of the driver."""
    names = "libcuda.so.1 libnvidia-ml.so.1 libcached.so.1"
    return run_with_gpus(
        home, "env", f"LD_PRELOAD={names}", f"/{LOADER}", "--list", "/bin/dynamic"
    )[1]


def test_program_sees_nodes_and_files_of_the_driver(run_in_namespace: Forked, home: Path) -> None:
    make_driver(home / "driver")

    def act() -> tuple[int, str]:
        script = f"{LIST_NODES}; nvidia-smi; echo $NVIDIA_VISIBLE_DEVICES"
        return run_with_gpus(home, "sh", "-c", script, gpus="device=1")

    assert run_in_namespace(act) == (
        0,
        "nvidia-modeset\nnvidia-uvm\nnvidia-uvm-tools\nnvidia0\nnvidiactl\n3\n"
        f"nvidia-smi of {VERSION}\nGPU-11a1b2c3-0000-4000-8000-000000000000\n",
    )


def test_loader_of_the_image_finds_the_libraries(run_in_namespace: Forked, home: Path) -> None:
    make_driver(home / "driver")

    def act() -> tuple[str, str]:
        base = prepare(home)
        add_loader(base)
        with_cache = list_loaded_libraries(home)
        # The directory alone suffices: this cache is of an unknown format.
        (base / "etc/ld.so.cache").write_bytes(b"unknown")
        return with_cache, list_loaded_libraries(home)

    with_cache, without = run_in_namespace(act)
    for output in (with_cache, without):
        assert f"libcuda.so.1 => /{LIBRARY_DIRECTORY}/libcuda.so.1 " in output
        assert f"libnvidia-ml.so.1 => /{LIBRARY_DIRECTORY}/libnvidia-ml.so.1 " in output
    assert "libcached.so.1 => /opt/libcached.so.1 " in with_cache
    assert "'libcached.so.1' from LD_PRELOAD cannot be preloaded" in without


def test_program_without_gpus_sees_none(run_in_namespace: Forked, home: Path) -> None:
    make_driver(home / "driver")
    script = "ls /dev/nvidia* /usr/bin/nvidia-smi"
    code, output = run_in_namespace(lambda: run_with_gpus(home, "sh", "-c", script, gpus="none"))
    assert code
    assert "nvidiactl" not in output


@pytest.mark.parametrize("ordinary", [False, True])
def test_program_sees_the_nodes_of_an_amd_gpu(home: Path, ordinary: bool) -> None:
    driver = make_amd_driver(home.parent / "driver")
    config = Configuration(gpu_driver_root=str(driver), cdi_spec_dirs="")
    script = "ls /dev/dri /dev/kfd; head -c 3 /dev/dri/renderD129 | wc -c"

    def act() -> tuple[int, str]:
        edits = provide_gpus(parse_gpus("device=1"), LayerView([prepare(home)]), config, {})
        return run(home, "sh", "-c", script, edits=edits)

    found = run_inside(act, home=home, ordinary=ordinary)
    assert found == (0, "/dev/kfd\n\n/dev/dri:\nrenderD129\n3\n")


def test_files_of_the_driver_are_read_only_and_nodes_are_copies(home: Path) -> None:
    driver = make_driver(home / "driver")
    library = f"/{LIBRARY_DIRECTORY}/libcuda.so.{VERSION}"
    script = f"echo x >{library} || echo closed; chmod 600 /dev/nvidia0; stat -c %a /dev/nvidia0"

    def act() -> str:
        (prepare(home) / LIBRARY_DIRECTORY).mkdir(parents=True)
        return run_with_gpus(home, "sh", "-c", script)[1]

    output = run_inside(act, home=home, ordinary=False)
    assert output.splitlines()[-2:] == ["closed", "600"]
    assert (driver / "dev/nvidia0").stat().st_mode & 0o777 == 0o666


def test_node_that_the_user_cannot_open_is_an_error(home: Path) -> None:
    driver = make_driver(home.parent / "driver")
    (driver / "dev/nvidia0").chmod(0o660)

    def act() -> str:
        config = Configuration(gpu_driver_root=str(driver), cdi_spec_dirs="")
        try:
            provide_gpus(parse_gpus("all"), LayerView([]), config, {})
        except MachineError as error:
            return error.message
        return ""

    message = run_inside(act, home=home, ordinary=True)
    assert message == f"{driver}/dev/nvidia0 cannot be opened by this user: its mode is 0660"


# -- CDI ------------------------------------------------------------------------------------------


def write_cdi_spec(home: Path) -> None:
    """Write a spec with a hook that leaves a file in the container's root."""
    hook = home / "nvidia-cdi-hook"
    hook.write_text(
        "#!/bin/sh\n"
        """bundle=$(sed -n 's/.*"bundle":"\\([^"]*\\)".*/\\1/p')\n"""
        """root=$(sed -n 's/.*"root":{"path":"\\([^"]*\\)".*/\\1/p' "$bundle/config.json")\n"""
        'echo "$@" >"$root/hooked"\n'
    )
    hook.chmod(0o755)
    spec = {
        "cdiVersion": "0.7.0",
        "kind": "nvidia.com/gpu",
        "devices": [
            {
                "name": "0",
                "containerEdits": {
                    "deviceNodes": [
                        {"path": "/dev/nvidia0", "hostPath": str(home / "driver/dev/nvidia1")}
                    ],
                    "additionalGids": [7],
                },
            }
        ],
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void"],
            "mounts": [
                {
                    "hostPath": str(home / "driver/usr/bin/nvidia-smi"),
                    "containerPath": "/usr/bin/nvidia-smi",
                    "options": ["ro", "nosuid", "nodev", "rbind", "rprivate"],
                }
            ],
            "hooks": [
                {
                    "hookName": "createContainer",
                    "path": str(hook),
                    "args": ["nvidia-cdi-hook", "update-ldcache", "--folder", "/lib"],
                }
            ],
        },
    }
    (home / "cdi").mkdir()
    (home / "cdi/nvidia.json").write_text(json.dumps(spec))


def test_cdi_spec_is_applied_and_its_hook_runs(run_in_namespace: Forked, home: Path) -> None:
    make_driver(home / "driver")
    write_cdi_spec(home)
    script = f"{LIST_NODES}; nvidia-smi; cat /hooked; echo $NVIDIA_VISIBLE_DEVICES; id -G"
    assert run_in_namespace(lambda: run_with_gpus(home, "sh", "-c", script, gpus="1")) == (
        0,
        f"nvidia0\n3\nnvidia-smi of {VERSION}\nupdate-ldcache --folder /lib\nvoid\n0 7\n",
    )


def test_failing_hook_is_an_error(home: Path) -> None:
    make_driver(home / "driver")
    write_cdi_spec(home)
    (home / "nvidia-cdi-hook").write_text("#!/bin/sh\necho it broke >&2; exit 3\n")

    def act() -> str:
        try:
            run_with_gpus(home, "true")
        except Exception as error:
            return f"{error} {getattr(error, 'details', '')}"
        return ""

    assert "it broke" in run_inside(act, home=home, ordinary=False)


# -- jobs and commands ----------------------------------------------------------------------------


def test_container_of_a_job_gets_the_allocated_gpus(home: Path) -> None:
    make_driver(home / "driver")

    async def act(rig: EngineRig) -> tuple[ContainerExit, str]:
        script = f"{LIST_NODES}; echo [$CUDA_VISIBLE_DEVICES]"
        return await rig.run_script(script, limits=ResourceLimits(gpus=(1,)))

    end, output = run_inside(
        lambda: run_within(home, act, config=configure(home)),
        home=home,
        ordinary=False,
        enter=container_engine.enter_namespaces,
    )
    assert end.code == 0
    assert output.splitlines()[-4:] == ["nvidia0", "nvidiactl", "3", "[]"]


@pytest.fixture
def danlu(danlu: Danlu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Danlu:
    """The program on a machine with two GPUs."""
    make_driver(tmp_path / "driver")
    monkeypatch.setenv("DANLU_GPU_DRIVER_ROOT", str(tmp_path / "driver"))
    monkeypatch.setenv("DANLU_CDI_SPEC_DIRS", str(tmp_path / "cdi"))
    monkeypatch.setenv("DANLU_ALLOCATION_DIR", str(tmp_path / "allocations"))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    return danlu


def test_gpus_of_an_environment_are_saved_with_it(danlu: Danlu, tmp_path: Path) -> None:
    def up(*options: str, check: bool = True) -> Any:
        return danlu("up", "--image", "box:1", "-d", "-n", "g", *options, cwd=tmp_path, check=check)

    def list_nodes() -> list[str]:
        output = danlu("exec", "-n", "g", "--", "sh", "-c", LIST_NODES, cwd=tmp_path).stdout
        return [word for word in output.split() if word.startswith("nvidia") and word[6].isdigit()]

    missing = up("--gpus", "3", check=False)
    assert missing.returncode == 4
    assert "--gpus 3: this machine has 2 GPUs" in missing.stderr
    up("--gpus", "all")
    (listing,) = json.loads(danlu("ps", "--format", "json", cwd=tmp_path).stdout)
    assert listing["gpus"] == "all"
    assert list_nodes() == ["nvidia0", "nvidia1"]
    danlu("stop", "g", cwd=tmp_path)
    danlu("start", "g", cwd=tmp_path)
    assert list_nodes() == ["nvidia0", "nvidia1"]
    assert "g runs with other gpus" in up("--gpus", "device=1").stderr
    upper = tmp_path / "home/environments/g/upper"
    assert not [name for _, _, names in os.walk(upper) for name in names if "nvidia" in name]


def test_environments_get_different_gpus(danlu: Danlu, tmp_path: Path) -> None:
    def start(*words: str) -> Any:
        return danlu(*words, cwd=tmp_path, check=False)

    def up(name: str, gpus: str) -> Any:
        return start("up", "--image", "box:1", "-d", "-n", name, "--gpus", gpus)

    script = "echo $NVIDIA_VISIBLE_DEVICES | cut -c1-6"
    up("a", "1")
    up("b", "1")
    seen = [start("exec", "-n", name, "--", "sh", "-c", script).stdout for name in "ab"]
    assert seen == ["GPU-00\n", "GPU-11\n"]
    refused = up("c", "1")
    assert refused.returncode == 4
    assert "too few GPUs are free, because of environment a and environment b\n" in refused.stderr
    run = start("run", "--image", "box:1", "--gpus", "1", "--", "true")
    assert run.returncode == 125
    assert "hint: stop it, or share GPUs by naming them, such as --gpus device=0" in run.stderr
    named = start("run", "--image", "box:1", "--gpus", "device=0", "--", "sh", "-c", script)
    assert named.stdout == "GPU-00\n"
    listing = {
        row["name"]: row["assigned_gpus"]
        for row in json.loads(start("ps", "--format", "json").stdout)
    }
    assert listing == {"a": [0], "b": [1]}
    assert [line.split()[-2] for line in start("ps").stdout.splitlines()] == ["GPU", "0", "1"]
    start("stop", "a")
    assert up("c", "1").returncode == 0
    assert start("exec", "-n", "c", "--", "sh", "-c", script).stdout == "GPU-00\n"


def test_run_provides_gpus_and_names_missing_ones(danlu: Danlu, tmp_path: Path) -> None:
    def start(gpus: str, *command: str) -> Any:
        options = ("run", "--image", "box:1", "--gpus", gpus, "--", *command)
        return danlu(*options, cwd=tmp_path, check=False)

    assert start("all", "nvidia-smi").stdout == f"nvidia-smi of {VERSION}\n"
    assert start("none", "sh", "-c", "ls /dev").stdout.count("nvidia") == 0
    (tmp_path / "driver/dev/nvidia-uvm").unlink()
    broken = start("1", "true")
    assert broken.returncode == 125
    assert "nvidia-uvm does not exist" in broken.stderr
    assert "hint: `sudo nvidia-modprobe" in broken.stderr


def test_toolkit_of_nvidia_is_asked(
    danlu: Danlu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_cdi_spec(tmp_path)
    (tmp_path / "cdi").rename(tmp_path / "spec")
    program = tmp_path / "bin/nvidia-ctk"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\ncat {tmp_path}/spec/nvidia.json\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    options = (
        "run",
        "--image",
        "box:1",
        "--gpus",
        "1",
        "--",
        "sh",
        "-c",
        f"{LIST_NODES}; cat /hooked",
    )
    done = danlu(*options, cwd=tmp_path, check=False)
    assert done.stdout == "nvidia0\n3\nupdate-ldcache --folder /lib\n", done.stderr


def test_driver_of_a_mount_with_restrictions_is_shown(home: Path) -> None:
    """As a read-only driver volume, whose flags no user namespace can lift."""
    driver = home.parent / "driver"

    def mount_driver(paths: Paths) -> None:
        _linux.unshare(_linux.CLONE_NEWNS)
        _linux.mount("none", "/", flags=_linux.MS_REC | _linux.MS_SLAVE)
        driver.mkdir()
        _linux.mount("tmpfs", str(driver), "tmpfs")
        make_driver(driver)
        flags = _linux.MS_REMOUNT | _MS_RDONLY | _linux.MS_NOSUID
        _linux.mount("none", str(driver), flags=flags)

    def act() -> tuple[int, str]:
        script = "nvidia-smi; grep -c ' /usr/bin/nvidia-smi tmpfs ro,nosuid,nodev' /proc/mounts"
        config = Configuration(gpu_driver_root=str(driver), cdi_spec_dirs="")
        edits = provide_gpus(parse_gpus("all"), LayerView([prepare(home)]), config, {})
        return run(home, "sh", "-c", script, edits=edits)

    def run_as_ordinary_user() -> tuple[int, str]:
        return run_inside(act, home=home, ordinary=True)

    result = run_inside(run_as_ordinary_user, home=home, ordinary=False, enter=mount_driver)
    assert result == (0, f"nvidia-smi of {VERSION}\n1\n")
