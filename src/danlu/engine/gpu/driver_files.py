"""The files of the NVIDIA driver on this machine that programs in a container need.

The lists are those of libnvidia-container (``src/nvc_info.c``, ``src/common.h``) and of
nvidia-container-toolkit (``internal/discover/graphics.go``). As the latter does today
(``pkg/nvcdi/driver-nvml.go``), every library is taken whose name ends with the version of the
loaded driver, so that no list must follow each release. Libraries for 32 bits are left out.
"""

from __future__ import annotations

import os
import platform
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec

from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.ld_cache import native_flags, parse_cache

#: Names that programs ask for, even if this machine has no link of that name.
_USUAL_LINKS = {
    "libcuda": ("libcuda.so.1", "libcuda.so"),
    "libnvidia-ml": ("libnvidia-ml.so.1",),
    "libnvidia-ptxjitcompiler": ("libnvidia-ptxjitcompiler.so.1",),
}
_PROGRAMS = (
    *("nvidia-smi", "nvidia-debugdump", "nvidia-persistenced", "nv-fabricmanager"),
    *("nvidia-cuda-mps-control", "nvidia-cuda-mps-server"),
)
_PROGRAM_DIRECTORIES = (
    *("/usr/bin", "/usr/sbin", "/usr/local/bin", "/bin", "/sbin", "/opt/bin"),
    *("/run/current-system/sw/bin", "/usr/local/nvidia/bin", "/home/kubernetes/bin/nvidia/bin"),
)
_SOCKETS = (
    *("/run/nvidia-persistenced/socket", "/run/nvidia-fabricmanager/socket"),
    *("/var/run/nvidia-persistenced/socket", "/var/run/nvidia-fabricmanager/socket"),
)
#: Where the loaders of OpenCL, EGL and Vulkan look for drivers.
_CONFIGURATION = (
    "/etc/OpenCL/vendors/nvidia.icd",
    "/etc/vulkan/icd.d/nvidia_icd.json",
    "/etc/vulkan/implicit_layer.d/nvidia_layers.json",
    "/usr/share/vulkan/icd.d/nvidia_icd.json",
    "/usr/share/vulkan/implicit_layer.d/nvidia_layers.json",
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json",
    "/usr/share/nvidia/nvoptix.bin",
)
_FIRMWARE = "/lib/firmware/nvidia/{}"
_MULTIARCH = {"x86_64": "x86_64-linux-gnu", "aarch64": "aarch64-linux-gnu"}
#: ``e_machine`` of elf(5).
_ELF_MACHINES = {"x86_64": 62, "aarch64": 183}
_ELF_HEADER = struct.Struct("<4sBB10xHH")
_CACHE_LIMIT = 16 << 20


class DriverLibrary(msgspec.Struct, frozen=True):
    """A library: its file on this machine, and the links that lead to it (``libcuda.so.1``)."""

    file: Path
    links: tuple[str, ...]


class DriverFiles(msgspec.Struct, frozen=True):
    """Files by their purpose. Programs, sockets and data have their paths in a container."""

    libraries: tuple[DriverLibrary, ...] = ()
    programs: dict[str, Path] = {}
    sockets: dict[str, Path] = {}
    data: dict[str, Path] = {}


class DriverTree:
    """A directory in which an NVIDIA driver is installed, ``/`` or a driver container's root.

    Links are resolved inside it.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._view = LayerView([root])

    def find_path(self, path: str) -> Path | None:
        """Return the file or directory at an absolute path, links resolved, or None."""
        found = self._root.joinpath(*self._view.resolve(path))
        return found if os.path.lexists(found) else None

    def find_files(self, version: str) -> DriverFiles:
        """Return the files of the driver with that version, which the kernel has loaded."""
        firmware = _FIRMWARE.format(version)
        return DriverFiles(
            self._find_libraries(version),
            dict(self._find_programs()),
            dict(self._find_existing(_SOCKETS)),
            {
                **dict(self._find_existing(_CONFIGURATION)),
                **dict(self._find_existing(self._list_firmware(firmware))),
            },
        )

    def list_library_versions(self) -> tuple[str, ...]:
        """Return the versions of ``libcuda.so`` on this machine."""
        names = (
            name for directory in self._library_directories() for name in _list_names(directory)
        )
        prefix = "libcuda.so."
        found = {name.removeprefix(prefix) for name in names if name.startswith(prefix)}
        return tuple(sorted(version for version in found if "." in version))

    def _find_libraries(self, version: str) -> tuple[DriverLibrary, ...]:
        files: dict[str, Path] = {}
        directories = self._library_directories()
        for directory in directories:
            for name in _list_names(directory):
                if name.endswith(f".so.{version}") and name not in files:
                    # NixOS has a directory of links to the files.
                    path = self.find_path(self._name_inside(directory, name))
                    if path is not None and path.name == name and is_native_elf(path):
                        files[name] = path
        links = {name: set(_USUAL_LINKS.get(name.partition(".")[0], ())) for name in files}
        for directory in directories:
            for name in _list_names(directory):
                if ".so" in name and (directory / name).is_symlink():
                    target = "".join(self._view.resolve(self._name_inside(directory, name))[-1:])
                    if target in links and target != name:
                        links[target].add(name)
        return tuple(
            DriverLibrary(files[name], tuple(sorted(links[name]))) for name in sorted(files)
        )

    def _name_inside(self, directory: Path, name: str) -> str:
        """Return the absolute path as links in the tree mean it."""
        return f"/{directory.relative_to(self._root)}/{name}"

    def _library_directories(self) -> list[Path]:
        """Return the directories of the driver's libraries: of the cache, then usual ones."""
        multiarch = _MULTIARCH.get(platform.machine(), "")
        usual = (
            *(f"/usr/lib/{multiarch}", f"/usr/lib/{multiarch}/nvidia/current"),
            *(f"/usr/lib/{multiarch}/nvidia", f"/lib/{multiarch}", "/usr/lib64", "/usr/lib"),
            *("/run/opengl-driver/lib", "/usr/local/nvidia/lib64", "/opt/lib64"),
            "/home/kubernetes/bin/nvidia/lib64",
        )
        paths = (self._view.resolve(path) for path in (*self._cached_directories(), *usual))
        found = [self._root.joinpath(*parts) for parts in dict.fromkeys(paths)]
        return [path for path in (*found, *(path / "vdpau" for path in found)) if path.is_dir()]

    def _cached_directories(self) -> Iterator[str]:
        cache = self._root.joinpath(*self._view.resolve("/etc/ld.so.cache"))
        try:
            with cache.open("rb") as file:
                libraries = parse_cache(file.read(_CACHE_LIMIT))
        except (OSError, ValueError):
            return
        for library in libraries:
            if library.flags == native_flags() and library.name.startswith("libcuda.so"):
                path = library.path
                yield os.path.dirname(path)
                # Where a link of Debian's alternatives leads.
                yield f"/{'/'.join(self._view.resolve(path)[:-1])}"

    def _find_programs(self) -> Iterator[tuple[str, Path]]:
        for name in _PROGRAMS:
            paths = (self.find_path(f"{directory}/{name}") for directory in _PROGRAM_DIRECTORIES)
            found = [path for path in paths if path is not None and path.is_file()]
            # A script in /usr/bin may only execute the program, at a path that no image has.
            found.sort(key=lambda path: not is_native_elf(path))
            if found:
                yield f"/usr/bin/{name}", found[0]

    def _find_existing(self, paths: Iterable[str]) -> Iterator[tuple[str, Path]]:
        seen: set[Path] = set()
        for path in paths:
            found = self.find_path(path)
            if found is not None and not found.is_dir() and found not in seen:
                seen.add(found)
                yield path, found

    def _list_firmware(self, directory: str) -> list[str]:
        found = self.find_path(directory)
        names = _list_names(found) if found is not None else []
        return [f"{directory}/{name}" for name in names if name.startswith("gsp")]


def is_native_elf(path: Path) -> bool:
    """Return whether a file is an ELF file of this machine's architecture, with 64 bits."""
    try:
        with path.open("rb") as file:
            magic, size, _, _, machine = _ELF_HEADER.unpack(file.read(_ELF_HEADER.size))
    except (OSError, struct.error):
        return False
    expected = _ELF_MACHINES.get(platform.machine())
    return (magic, size, machine) == (b"\x7fELF", 2, expected)


def find_library_directory(view: LayerView) -> str:
    """Return the directory of an image in which its loader looks for libraries without a cache.

    It is Debian's, or the usual one of other distributions, as libnvidia-container chooses it
    (``src/nvc_container.c``).
    """
    multiarch = f"/usr/lib/{_MULTIARCH.get(platform.machine(), '')}"
    candidates = (multiarch, "/usr/lib64", "/lib64")
    found = (path for path in candidates if view.directories(view.resolve(path)))
    return next(found, "/usr/lib")


def _list_names(directory: Path) -> list[str]:
    try:
        return sorted(os.listdir(directory))
    except OSError:
        return []
