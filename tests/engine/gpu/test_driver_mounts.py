"""The driver's files and nodes for a container, from a directory like that of a driver."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from danlu.engine.gpu.driver_mounts import build_driver_edits
from danlu.engine.gpu.provider import count_gpus, describe_gpu_access, provide_gpus
from danlu.engine.gpu.selection import GpuSelection, parse_gpus
from danlu.errors import MachineError
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.ld_cache import CachedLibrary, native_flags, parse_cache, render_cache
from danlu.sandbox.types import ContainerEdits
from danlu.util.config import Configuration
from tests.engine.gpu.driver_tree import (
    LIBRARY_DIRECTORY,
    VERSION,
    find_system_library,
    make_driver,
    make_nodes,
)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """A layer with Debian's directory of libraries and a loader's cache."""
    layer = tmp_path / "image"
    (layer / LIBRARY_DIRECTORY).mkdir(parents=True)
    (layer / "etc").mkdir()
    library = CachedLibrary("libz.so.1", "/opt/libz.so.1", native_flags())
    (layer / "etc/ld.so.cache").write_bytes(render_cache([library]))
    return layer


Build = Callable[..., ContainerEdits]


@pytest.fixture
def build(image: Path, tmp_path: Path) -> Build:
    """Build the edits for ``--gpus`` from the driver in ``tmp_path/driver``."""

    def act(gpus: str = "all", **environ: str) -> ContainerEdits:
        view = LayerView([image])
        return build_driver_edits(parse_gpus(gpus), view, tmp_path / "driver", environ)

    return act


def test_libraries_have_links_in_the_directory_of_the_image(build: Build, tmp_path: Path) -> None:
    driver = make_driver(tmp_path / "driver")
    edits = build()
    directory = f"/{LIBRARY_DIRECTORY}"
    mounts = {mount.target: mount for mount in edits.mounts}
    library = mounts[f"{directory}/libcuda.so.{VERSION}"]
    assert library.source == driver / LIBRARY_DIRECTORY / f"libcuda.so.{VERSION}"
    assert library.readonly
    assert f"{directory}/libnvidia-glcore.so.{VERSION}" in mounts
    assert edits.links[f"{directory}/libcuda.so.1"] == f"libcuda.so.{VERSION}"
    assert edits.links[f"{directory}/libEGL_nvidia.so.0"] == f"libEGL_nvidia.so.{VERSION}"
    assert edits.links[f"{directory}/libvdpau_nvidia.so.1"] == f"libvdpau_nvidia.so.{VERSION}"
    assert {"/usr/bin/nvidia-smi", "/usr/bin/nvidia-cuda-mps-control"} <= mounts.keys()
    assert f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin" in mounts


def test_cache_of_the_image_gets_the_libraries(build: Build, tmp_path: Path) -> None:
    make_driver(tmp_path / "driver")
    cache = {library.name: library for library in parse_cache(build().files["/etc/ld.so.cache"])}
    assert cache["libcuda.so.1"].path == f"/{LIBRARY_DIRECTORY}/libcuda.so.1"
    assert cache["libz.so.1"].path == "/opt/libz.so.1"


def test_damaged_cache_of_the_image_is_left_alone(
    build: Build, image: Path, tmp_path: Path
) -> None:
    make_driver(tmp_path / "driver")
    (image / "etc/ld.so.cache").write_bytes(b"no cache")
    edits = build()
    assert edits.files == {}
    assert edits.links


@pytest.mark.parametrize(
    ("gpus", "minors"), [("all", "10"), ("1", "1"), ("device=1", "0"), ("GPU-11a1", "0")]
)
def test_only_the_nodes_of_selected_gpus_are_given(
    build: Build, tmp_path: Path, gpus: str, minors: str
) -> None:
    make_driver(tmp_path / "driver")
    nodes = [node.path.removeprefix("/dev/nvidia") for node in build(gpus).devices]
    assert nodes == [*minors, "ctl", "-uvm", "-uvm-tools", "-modeset"]


def test_nodes_of_mig_instances_come_with_their_gpu(build: Build, tmp_path: Path) -> None:
    driver = make_driver(tmp_path / "driver", gpus=1)
    for name, minor in (("gi1", 12), ("gi1/ci0", 13), ("gi2", 14)):
        directory = driver / "proc/driver/nvidia/capabilities/gpu0/mig" / name
        directory.mkdir(parents=True)
        (directory / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")
    make_nodes(driver, "nvidia-caps/nvidia-cap12", "nvidia-caps/nvidia-cap13")
    paths = [node.path for node in build().devices]
    assert paths[-2:] == ["/dev/nvidia-caps/nvidia-cap12", "/dev/nvidia-caps/nvidia-cap13"]


def test_links_of_alternatives_are_followed_inside_the_tree(build: Build, tmp_path: Path) -> None:
    driver = make_driver(tmp_path / "driver")
    directory = driver / LIBRARY_DIRECTORY
    current = directory / "nvidia/current"
    current.mkdir(parents=True)
    for name in (f"libcuda.so.{VERSION}", "libcuda.so.1", "libcuda.so"):
        (directory / name).rename(current / name)
    alternative = driver / "etc/alternatives/libcuda.so.1"
    alternative.parent.mkdir()
    alternative.symlink_to(f"/{LIBRARY_DIRECTORY}/nvidia/current/libcuda.so.1")
    (directory / "libcuda.so.1").symlink_to("/etc/alternatives/libcuda.so.1")
    (mount,) = (mount for mount in build().mounts if "/libcuda.so" in mount.target)
    assert mount.source == current / f"libcuda.so.{VERSION}"
    assert mount.target == f"/{LIBRARY_DIRECTORY}/libcuda.so.{VERSION}"


def test_links_to_libraries_of_a_nix_store_are_followed(build: Build, tmp_path: Path) -> None:
    driver = make_driver(tmp_path / "driver")
    store = driver / "nix/store/nvidia-x11"
    store.parent.mkdir(parents=True)
    (driver / LIBRARY_DIRECTORY).rename(store)
    links = driver / "run/opengl-driver/lib"
    links.mkdir(parents=True)
    for path in store.iterdir():
        (links / path.name).symlink_to(f"/nix/store/nvidia-x11/{path.name}")
    edits = build()
    (mount,) = (mount for mount in edits.mounts if "/libcuda.so" in mount.target)
    assert mount.source == store / f"libcuda.so.{VERSION}"
    assert edits.links[f"/{LIBRARY_DIRECTORY}/libEGL_nvidia.so.0"] == f"libEGL_nvidia.so.{VERSION}"


def test_driver_in_a_directory_of_its_own_is_found(build: Build, tmp_path: Path) -> None:
    """As a volume in /usr/local/nvidia, and scripts in /usr/bin that execute its programs."""
    driver = make_driver(tmp_path / "driver")
    own = driver / "usr/local/nvidia"
    (own / "bin").mkdir(parents=True)
    (driver / LIBRARY_DIRECTORY).rename(own / "lib64")
    shutil.copy(find_system_library(), own / "bin/nvidia-smi")
    (driver / "usr/bin/nvidia-smi").write_text("#!/bin/sh\nexec /usr/local/nvidia/bin/nvidia-smi\n")
    mounts = {mount.target: mount for mount in build().mounts}
    assert mounts["/usr/bin/nvidia-smi"].source == own / "bin/nvidia-smi"
    library = mounts[f"/{LIBRARY_DIRECTORY}/libcuda.so.{VERSION}"]
    assert library.source == own / f"lib64/libcuda.so.{VERSION}"


def test_library_of_another_architecture_is_not_taken(build: Build, tmp_path: Path) -> None:
    driver = make_driver(tmp_path / "driver")
    library = driver / LIBRARY_DIRECTORY / f"libnvidia-ml.so.{VERSION}"
    data = bytearray(library.read_bytes())
    data[4] = 1  # 32 bits
    library.write_bytes(data)
    assert not any("libnvidia-ml" in mount.target for mount in build().mounts)


def test_libraries_of_another_version_are_an_error(build: Build, tmp_path: Path) -> None:
    driver = make_driver(tmp_path / "driver")
    for path in sorted((driver / LIBRARY_DIRECTORY).rglob("*")):
        if path.name.endswith(VERSION):
            path.rename(path.with_name(path.name.replace(VERSION, "580.99.01")))
    with pytest.raises(MachineError) as caught:
        build()
    assert caught.value.message == (
        f"libcuda.so of the loaded driver {VERSION} was not found; the installed one is 580.99.01"
    )
    assert "reboot" in caught.value.hint


@pytest.mark.parametrize("name", ["nvidia0", "nvidiactl", "nvidia-uvm"])
def test_missing_node_is_an_error_with_a_remedy(build: Build, tmp_path: Path, name: str) -> None:
    driver = make_driver(tmp_path / "driver")
    make_nodes(driver, "other")
    node = driver / "dev" / name
    if name != "nvidiactl":
        node.unlink()
    else:
        # Then the machine's own nodes count, which lack a GPU of the tree.
        node.unlink()
        (driver / "proc/driver/nvidia/gpus/0000:01:00.0/information").write_text("Device Minor: 99")
    with pytest.raises(MachineError, match="does not exist") as caught:
        build()
    assert "nvidia-modprobe" in caught.value.hint
    assert caught.value.exit_code == 4


def test_a_regular_file_is_not_a_device_node(build: Build, tmp_path: Path) -> None:
    driver = make_driver(tmp_path / "driver", gpus=1, nodes=False)
    for name in ("nvidiactl", "nvidia0", "nvidia-uvm"):
        path = driver / "dev" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("secret")
    information = driver / "proc/driver/nvidia/gpus/0000:01:00.0/information"
    information.write_text("Device Minor: 99")
    with pytest.raises(MachineError, match="/dev/nvidia99 does not exist"):
        build()


def test_windows_has_one_node_for_all_gpus(build: Build, tmp_path: Path) -> None:
    driver = tmp_path / "driver"
    libraries = driver / "usr/lib/wsl/lib"
    libraries.mkdir(parents=True)
    for name in ("libcuda.so.1", "libdxcore.so", "nvidia-smi"):
        (libraries / name).touch()
    (driver / "usr/lib/wsl/drivers").mkdir()
    make_nodes(driver, "dxg")
    edits = build("device=1")
    assert [node.path for node in edits.devices] == ["/dev/dxg"]
    assert [mount.target for mount in edits.mounts] == ["/usr/lib/wsl/lib", "/usr/lib/wsl/drivers"]
    assert edits.links[f"/{LIBRARY_DIRECTORY}/libcuda.so.1"] == "/usr/lib/wsl/lib/libcuda.so.1"
    assert edits.links["/usr/bin/nvidia-smi"] == "/usr/lib/wsl/lib/nvidia-smi"
    assert edits.environment == {"CUDA_VISIBLE_DEVICES": "1"}


# -- which of the ways ----------------------------------------------------------------------------


def configure(tmp_path: Path) -> Configuration:
    driver, specs = str(tmp_path / "driver"), str(tmp_path / "cdi")
    return Configuration(gpu_driver_root=driver, cdi_spec_dirs=specs)


def test_without_a_selection_no_gpu_is_searched(tmp_path: Path) -> None:
    (tmp_path / "cdi").write_text("not a directory")
    assert provide_gpus(GpuSelection(), LayerView([]), configure(tmp_path)) == ContainerEdits()


@pytest.fixture
def toolkit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Write a shell script as the ``nvidia-ctk`` of this machine."""

    def write(script: str) -> Path:
        program = tmp_path / "bin/nvidia-ctk"
        program.parent.mkdir(exist_ok=True)
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)
        return program

    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    return write


TOOLKITS_SPEC = (
    '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0",'
    ' "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0", "hostPath": "/dev/zero"}]}}]}'
)


def test_toolkit_of_nvidia_describes_the_gpus(
    toolkit: Callable[[str], Path], tmp_path: Path
) -> None:
    config = configure(tmp_path)
    # Without the usual files of a driver, as on NVIDIA's boards.
    program = toolkit(
        f"test \"$*\" = 'cdi generate --format=json --driver-root={tmp_path}/driver'"
        f" && echo '{TOOLKITS_SPEC}'"
    )
    edits = provide_gpus(parse_gpus("1"), LayerView([]), config, {})
    assert [node.path for node in edits.devices] == ["/dev/nvidia0"]
    assert count_gpus(config, {}) == 1
    assert describe_gpu_access(config) == f"as {program} describes (CDI)"


def test_files_of_the_driver_replace_a_toolkit_that_fails(
    toolkit: Callable[[str], Path], tmp_path: Path
) -> None:
    program = toolkit("echo 'unknown command: cdi' >&2; exit 1")
    with pytest.raises(MachineError, match=f"{program} cdi generate failed: unknown command: cdi"):
        provide_gpus(parse_gpus("1"), LayerView([]), configure(tmp_path), {})
    make_driver(tmp_path / "driver")
    edits = provide_gpus(parse_gpus("1"), LayerView([]), configure(tmp_path), {})
    assert "/dev/nvidiactl" in [node.path for node in edits.devices]


def test_gpus_are_counted_and_described(tmp_path: Path) -> None:
    config = configure(tmp_path)
    make_driver(tmp_path / "driver")
    assert count_gpus(config, {}) == 2
    assert count_gpus(config, {"CUDA_VISIBLE_DEVICES": "1"}) == 1
    assert describe_gpu_access(config) == "6 device nodes and 6 libraries of the driver"
    cdi = tmp_path / "cdi"
    cdi.mkdir()
    (cdi / "nvidia.json").write_text(
        '{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "0"}]}'
    )
    assert count_gpus(config, {}) == 1
    assert describe_gpu_access(config) == f"as {cdi}/nvidia.json describes (CDI)"
