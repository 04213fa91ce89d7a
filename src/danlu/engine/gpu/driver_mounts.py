"""The driver's files and the GPUs' nodes in a container, without any toolkit of NVIDIA's.

Libraries are mounted in the directory of the image in which its loader looks anyway, and links with
their short names lie next to them in a layer over the image. The same layer has a loader's cache
with these libraries added, because some programs ask that instead of the loader (``ldconfig -p``).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from danlu.engine.gpu.driver_files import DriverFiles, DriverTree, find_library_directory
from danlu.engine.gpu.selection import GpuChoice, GpuSelection, choose_gpus
from danlu.errors import MachineError
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.ld_cache import CachedLibrary, native_flags, parse_cache, render_cache
from danlu.sandbox.nvidia_driver import NvidiaGpu, find_proc_root, list_gpus, read_driver
from danlu.sandbox.types import ContainerEdits, DeviceNode, Mount

_LOADER_CACHE = "/etc/ld.so.cache"
#: Without these, CUDA does not work; without the others, only some tools.
_REQUIRED_NODES = ("nvidiactl", "nvidia-uvm")
_OPTIONAL_NODES = ("nvidia-uvm-tools", "nvidia-modeset")
_MPS_DIRECTORY = "/tmp/nvidia-mps"
_WSL_DEVICE = "/dev/dxg"
_WSL_LIBRARIES = "/usr/lib/wsl/lib"
_WSL_DRIVERS = "/usr/lib/wsl/drivers"


def has_wsl_driver(root: Path) -> bool:
    """Return whether GPUs are those of Windows: of a virtual machine of WSL 2."""
    return _is_device(root / _WSL_DEVICE[1:]) and (root / _WSL_LIBRARIES[1:]).is_dir()


def missing_gpu_error() -> MachineError:
    """Return the error for a machine without a GPU, or whose driver is not loaded."""
    return MachineError(
        "no NVIDIA driver is loaded on this machine",
        hint="install it (`nvidia-smi` must list the GPUs), or run on the CPU: --gpus none",
    )


def build_driver_edits(
    selection: GpuSelection, view: LayerView, root: Path, environ: Mapping[str, str]
) -> ContainerEdits:
    """Return what the selected GPUs need in a container of the image ``view``.

    ``root`` is where the driver is installed. Raises :class:`MachineError` if no driver is
    loaded, or a file or node of it is missing.
    """
    proc = find_proc_root(root)
    driver = read_driver(proc)
    if driver is None and has_wsl_driver(root):
        return _build_wsl_edits(selection, view, root)
    if driver is None:
        raise missing_gpu_error()
    gpus = list_gpus(proc)
    choices = [GpuChoice((str(gpu.index), gpu.uuid)) for gpu in gpus]
    picked = {choice.names[0] for choice in choose_gpus(selection, choices, environ)}
    chosen = [gpu for gpu in gpus if str(gpu.index) in picked]
    tree = DriverTree(root)
    files = tree.find_files(driver.version)
    _require_libcuda(files, tree, driver.version)
    directory = find_library_directory(view)
    links = {
        f"{directory}/{link}": library.file.name
        for library in files.libraries
        for link in library.links
    }
    libraries = {f"{directory}/{library.file.name}": library.file for library in files.libraries}
    readonly = {**libraries, **files.programs, **files.data}
    return ContainerEdits(
        devices=tuple(_list_nodes(root, proc, chosen)),
        mounts=(
            *(Mount(target, source, readonly=True) for target, source in readonly.items()),
            *(Mount(target, source) for target, source in files.sockets.items()),
            *_list_mps_mounts(),
        ),
        links=links,
        files=_render_loader_cache(view, [*libraries, *links]),
        environment={
            "NVIDIA_VISIBLE_DEVICES": ",".join(gpu.uuid or str(gpu.index) for gpu in chosen)
        },
    )


def _require_libcuda(files: DriverFiles, tree: DriverTree, version: str) -> None:
    if any("libcuda.so" in library.links for library in files.libraries):
        return
    others = tree.list_library_versions()
    found = f"; the installed one is {', '.join(others)}" if others else ""
    raise MachineError(
        f"libcuda.so of the loaded driver {version} was not found{found}",
        hint="reboot after an update of the driver" if others else "install the driver's libraries",
    )


# -- device nodes ---------------------------------------------------------------------------------


def _list_nodes(root: Path, proc: Path, gpus: Sequence[NvidiaGpu]) -> Iterator[DeviceNode]:
    dev = root / "dev" if _is_device(root / "dev/nvidiactl") else Path("/dev")
    required = [f"nvidia{gpu.minor}" for gpu in gpus]
    for name in (*required, *_REQUIRED_NODES):
        if not _is_device(dev / name):
            raise MachineError(
                f"{dev / name} does not exist",
                hint="`sudo nvidia-modprobe -u -c 0`, or any CUDA program run as root, creates it",
            )
        if not os.access(dev / name, os.R_OK | os.W_OK):
            mode = stat.S_IMODE((dev / name).stat().st_mode)
            raise MachineError(
                f"{dev / name} cannot be opened by this user: its mode is {mode:04o}",
                hint="open it to all, as the driver does by default: `options nvidia"
                " NVreg_DeviceFileMode=0666` in /etc/modprobe.d, then reboot",
            )
    for name in (*required, *_REQUIRED_NODES, *_OPTIONAL_NODES):
        if _is_device(dev / name):
            yield DeviceNode(f"/dev/{name}", dev / name)
    for gpu in gpus:
        for path in _list_capabilities(proc, gpu):
            if _is_device(dev / path):
                yield DeviceNode(f"/dev/{path}", dev / path)


def _list_capabilities(proc: Path, gpu: NvidiaGpu) -> Iterator[str]:
    """Yield the nodes of a GPU's MIG instances, below ``/dev`` (nvidia-caps, driver's README)."""
    place = proc / f"proc/driver/nvidia/capabilities/gpu{gpu.minor}/mig"
    for path in sorted(place.glob("**/access")):
        try:
            lines = path.read_text(errors="replace").splitlines()
        except OSError:
            continue
        for line in lines:
            name, _, value = line.partition(":")
            if name == "DeviceFileMinor" and value.strip().isdecimal():
                yield f"nvidia-caps/nvidia-cap{value.strip()}"


def _is_device(path: Path) -> bool:
    try:
        return stat.S_ISCHR(path.stat().st_mode)
    except OSError:
        return False


def _list_mps_mounts() -> Iterator[Mount]:
    """Yield the directory of CUDA's multi process service, unless another user made it."""
    path = Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_DIRECTORY)
    try:
        status = path.lstat()
    except OSError:
        return
    # Anybody can create this path in /tmp, with a server's socket of their own.
    if path.is_absolute() and stat.S_ISDIR(status.st_mode) and status.st_uid in (0, os.getuid()):
        yield Mount(_MPS_DIRECTORY, path)


# -- the loader -----------------------------------------------------------------------------------


def _render_loader_cache(view: LayerView, paths: Sequence[str]) -> dict[str, bytes]:
    """Return the image's cache with the libraries ``paths``; nothing if it is invalid."""
    flags = native_flags()
    data = view.read(_LOADER_CACHE)
    try:
        present = parse_cache(data) if data is not None else []
    except ValueError:
        return {}
    added = [CachedLibrary(os.path.basename(path), path, flags) for path in paths]
    return {_LOADER_CACHE: render_cache([*added, *present])} if flags else {}


# -- Windows --------------------------------------------------------------------------------------


def _build_wsl_edits(selection: GpuSelection, view: LayerView, root: Path) -> ContainerEdits:
    """Return the one node of all GPUs, and the libraries at their paths, which they know.

    GPUs are numbered by CUDA only (``pkg/nvcdi/driver-wsl.go`` of nvidia-container-toolkit).
    """
    directory = find_library_directory(view)
    names = sorted(path.name for path in (root / _WSL_LIBRARIES[1:]).glob("*.so*"))
    links = {f"{directory}/{name}": f"{_WSL_LIBRARIES}/{name}" for name in names}
    visible = ",".join(selection.names or map(str, range(selection.count)))
    if (root / _WSL_LIBRARIES[1:] / "nvidia-smi").exists():
        links["/usr/bin/nvidia-smi"] = f"{_WSL_LIBRARIES}/nvidia-smi"
    return ContainerEdits(
        devices=(DeviceNode(_WSL_DEVICE, root / _WSL_DEVICE[1:]),),
        mounts=tuple(
            Mount(path, root / path[1:], readonly=True)
            for path in (_WSL_LIBRARIES, _WSL_DRIVERS)
            if (root / path[1:]).is_dir()
        ),
        links=links,
        files=_render_loader_cache(view, [f"{directory}/{name}" for name in names]),
        environment={"CUDA_VISIBLE_DEVICES": visible} if visible else {},
    )
