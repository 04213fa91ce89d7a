"""``install.cuda``: CUDA and cuDNN as NVIDIA's Python wheels, found by the dynamic loader.

The wheels are those that PyTorch, JAX and others require, so that an environment has one copy of
each library, each in a separate layer. A loader cache makes the libraries visible to programs that
are not Python packages, without ``LD_LIBRARY_PATH``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from msgspec.structs import replace

from danlu.environment.cuda_compatibility import find_version_conflicts
from danlu.environment.cuda_releases import (
    COMPONENTS,
    METAPACKAGE,
    CudaRelease,
    find_release,
    list_nearest,
    list_releases,
    parse_version,
)
from danlu.environment.image_layout import VENV, make_scheme
from danlu.environment.lock import FunctionLock
from danlu.environment.types import BaseSystem, Declaration, GraphContext, PythonPackages
from danlu.errors import BuildFileError, ResolveError
from danlu.graph.ops import FileEntry, LoaderCache, Merge
from danlu.graph.types import Vertex
from danlu.lang.arg_types import TEXT, TEXTS, CallError, choice
from danlu.lang.build_function import (
    DEFAULT_IMAGE,
    BoundCall,
    BuildFunction,
    EnvironmentBuilder,
    Parameter,
)
from danlu.util.suggest import did_you_mean

#: What NVIDIA calls flavors of its images, by components.
_FLAVORS: dict[str, tuple[str, ...]] = {"base": ("cudart",)}
_FLAVORS["runtime"] = (
    *_FLAVORS["base"],
    *("nvrtc", "cublas", "cufft", "cufile", "curand", "cusolver", "cusparse", "npp", "nvjpeg"),
    *("nvjitlink", "nvfatbin", "nvtx"),
)
_FLAVORS["devel"] = (
    *_FLAVORS["runtime"],
    *("nvcc", "crt", "nvvm", "cccl", "cupti", "nvml", "profiler"),
)

#: Directories of libraries below ``site-packages`` by wheel, without the suffix of its name.
_LIBRARIES = {
    "nvidia-cuda-runtime": "cuda_runtime",
    "nvidia-cuda-nvrtc": "cuda_nvrtc",
    "nvidia-cublas": "cublas",
    "nvidia-cufft": "cufft",
    "nvidia-cufile": "cufile",
    "nvidia-curand": "curand",
    "nvidia-cusolver": "cusolver",
    "nvidia-cusparse": "cusparse",
    "nvidia-cudnn": "cudnn",
    "nvidia-npp": "npp",
    "nvidia-nvjpeg": "nvjpeg",
    "nvidia-nvjitlink": "nvjitlink",
    "nvidia-nvfatbin": "nvfatbin",
    "nvidia-nvtx": "nvtx",
    "nvidia-cuda-opencl": "cuda_opencl",
    "nvidia-cuda-cupti": "cuda_cupti",
}

_CUDA_HOME = "/usr/local/cuda"

_UBUNTU_IMAGE = re.compile(r"(?:docker\.io/)?(?:library/)?ubuntu:(\d\d\.\d\d)")

#: The file of NVIDIA's own packages and images.
_LOADER_CONFIG = "/etc/ld.so.conf.d/000_cuda.conf"


class CudaToolkit(Declaration, frozen=True):
    """``install.cuda(version, cudnn, flavor, components)``.

    ``cudnn`` is a version, ``*`` for one that suits the other packages, or empty for none.
    """

    needs_python = True

    version: str
    cudnn: str = "*"
    flavor: str = "runtime"
    components: tuple[str, ...] = ()

    def virtual_packages(self) -> tuple[tuple[str, str], ...]:
        return (("__cuda", ".".join(self.version.split(".")[:2])),)

    @property
    def release(self) -> CudaRelease:
        """The release; the call was checked, so it exists."""
        release = find_release(self.version)
        assert release is not None
        return release

    @property
    def has_compiler(self) -> bool:
        """Whether nvcc is installed. NVIDIA's wheels of that name have only ptxas before 13."""
        return self.release.major >= 13 and "nvcc" in self._list_components()

    def system_packages(self) -> tuple[str, ...]:
        # nvcc runs the host's compiler.
        return ("g++",) if self.has_compiler else ()

    def python_packages(self) -> tuple[PythonPackages, ...]:
        names = self.release.requirements(self._list_components())
        if self.cudnn:
            names = (*names, self._require_cudnn(self.release.major))
        return (PythonPackages(names=names, source="install.cuda", span=self.span),)

    def _list_components(self) -> list[str]:
        needed = self._list_cudnn_needs() if self.cudnn else ()
        names = dict.fromkeys((*_FLAVORS[self.flavor], *self.components, *needed))
        return [name for name in names if name in self.release.components]

    def _list_cudnn_needs(self) -> tuple[str, ...]:
        """Return what cuDNN's wheel requires, which without a version is that of the newest CUDA.

        Where cuBLAS requires NVRTC, this does as well.
        """
        needs_nvrtc = self.release.major == 11 or self.release.minor >= (12, 9)
        return ("cublas", "nvrtc") if needs_nvrtc else ("cublas",)

    def _require_cudnn(self, major: int) -> str:
        if self.cudnn != "*":
            return f"nvidia-cudnn-cu{major}=={self.cudnn}.*"
        # envd's default is 8. With CUDA 12 and later, frameworks decide whether it is 8 or 9.
        return f"nvidia-cudnn-cu{major}" + ("==8.*" if major < 12 else "<10")

    def check_lock(self, lock: FunctionLock) -> None:
        conflicts = find_version_conflicts(self.version, lock.packages)
        if conflicts:
            raise ResolveError(
                conflicts[0].message,
                hint=conflicts[0].hint,
                span=self.span,
                details=tuple(conflict.message for conflict in conflicts[1:]),
            )

    def explain_conflict(self, reason: str) -> str:
        # A framework of the same major version requires the same wheels, and those of one release.
        names = "cuda-nvrtc|cuda-runtime" + ("|cublas" if self.release.major == 12 else "")
        wheels = rf"nvidia-(?:{names}){self.release.suffix}\b[^,]*?==(\d+\.\d+)"
        own = ".".join(str(number) for number in self.release.minor)
        others = sorted(set(re.findall(wheels, reason)) - {own})
        if others:
            return (
                f'another package is built for CUDA {others[0]}: use install.cuda(version="'
                f'{others[0]}"), or a version of that package for CUDA {own}'
            )
        if self.release.name != own and METAPACKAGE in reason:
            return f'use install.cuda(version="{own}"), which admits all updates of CUDA {own}'
        return ""

    def vertices(self, context: GraphContext) -> Sequence[Vertex]:
        if context.lock is None or context.python is None or context.system is None:
            return ()
        root = f"{VENV}/{make_scheme(context.python).site_packages}/nvidia"
        wheels = {
            name: vertex for name, vertex in context.wheels.items() if name.startswith("nvidia-")
        }
        directories = self._list_directories(root, sorted(wheels))
        entries = [FileEntry(_LOADER_CONFIG, content="".join(f"{path}\n" for path in directories))]
        if self.release.major >= 13:
            home = f"{root}/cu{self.release.major}"
            entries.append(FileEntry(_CUDA_HOME, "link", target=home))
            entries.append(FileEntry(f"{home}/lib64", "link", target="lib"))
        below = Vertex(Merge(), (context.system, *wheels.values()), "CUDA", "cuda")
        linked = tuple(directories) if self.has_compiler else ()
        cache = LoaderCache(tuple(entries), context.epoch, linked)
        name = f"CUDA {self.version} in the loader's cache"
        return (Vertex(cache, (below,), name, "cuda", (self.span,)),)

    def _list_directories(self, root: str, wheels: Sequence[str]) -> list[str]:
        if self.release.major >= 13:
            # From CUDA 13 on, the wheels share one tree; cuDNN has its own.
            return [f"{root}/cu{self.release.major}/lib", f"{root}/cudnn/lib"]
        names = [name.removesuffix(self.release.suffix) for name in wheels]
        return [f"{root}/{_LIBRARIES[name]}/lib" for name in names if name in _LIBRARIES]

    def variables(self) -> tuple[tuple[str, str], ...]:
        # As in NVIDIA's images: the NVIDIA container toolkit reads them when a container starts.
        common = (
            ("CUDA_VERSION", self.version),
            ("NVIDIA_DRIVER_CAPABILITIES", "compute,utility"),
            ("NVIDIA_REQUIRE_CUDA", f"cuda>={self.release.major}.0"),
            ("NVIDIA_VISIBLE_DEVICES", "all"),
        )
        return (*common, ("CUDA_HOME", _CUDA_HOME)) if self.has_compiler else common

    def extra_path(self) -> tuple[str, ...]:
        return (f"{_CUDA_HOME}/bin",) if self.has_compiler else ()


class CudaImage(Declaration, frozen=True):
    """``install.cuda`` from NVIDIA's image, which takes the place of the base, as in envd."""

    version: str
    cudnn: str = "*"
    flavor: str = "runtime"

    def virtual_packages(self) -> tuple[tuple[str, str], ...]:
        return (("__cuda", ".".join(self.version.split(".")[:2])),)

    def choose_base(self, base: BaseSystem) -> BaseSystem:
        if "nvidia/cuda:" in base.image:
            return base  # the user chose the image
        system = base.os or self._find_system(base.image)
        if not system.startswith("ubuntu"):
            # NVIDIA removes the images of a release's first versions: of 11.2 only 11.2.2 is left.
            ubuntu = "22.04" if parse_version(self.version) >= (11, 7) else "20.04"
            raise BuildFileError(
                f"install.cuda(): NVIDIA's image of CUDA {self.version} is not made for"
                f" {base.os or base.image}",
                hint=f'use base(os="ubuntu{ubuntu}") and the last version of the release,'
                " or wheels: a CUDA from 11.8 on without provider=",
                span=self.span,
            )
        return replace(base, os="", image=self.reference(system))

    def _find_system(self, image: str) -> str:
        """Return the release of Ubuntu that ``image`` is, empty for other images.

        The default of ``base()`` is any release, because NVIDIA's images for Ubuntu 22.04
        begin with CUDA 11.7, and those for 20.04 with CUDA 11.
        """
        match = _UBUNTU_IMAGE.fullmatch(image)
        if match is None:
            return ""
        if image == DEFAULT_IMAGE and parse_version(self.version) < (11, 7):
            return "ubuntu20.04" if parse_version(self.version) >= (11,) else "ubuntu18.04"
        return f"ubuntu{match[1]}"

    def reference(self, system: str) -> str:
        """Return NVIDIA's image for a distribution (``ubuntu22.04``)."""
        return f"nvidia/cuda:{self.version}{self._cudnn_tag()}-{self.flavor}-{system}"

    def _cudnn_tag(self) -> str:
        numbers = parse_version(self.version)
        if not self.cudnn:
            return ""
        if numbers >= (12, 4):
            return "-cudnn"  # these images have one version of cuDNN, and do not name it
        return f"-cudnn{'8' if self.cudnn == '*' else parse_version(self.cudnn)[0]}"


def _declare_cuda(env: EnvironmentBuilder, call: BoundCall) -> None:
    version, flavor = call["version"], call["flavor"]
    cudnn = "*" if call["cudnn"] is None else call["cudnn"]
    release = find_release(version)
    uses_image = call["provider"] == "image" or (release is None and not call["provider"])
    if uses_image and _is_image_release(version, release):
        _check_image_call(env, call)
        env.declare_once("install.cuda", CudaImage(version, cudnn, flavor, span=call.span))
        return
    if call["provider"] == "image" and release is not None:
        raise CallError(
            f"install.cuda(): NVIDIA's images have no CUDA {version}, only complete versions",
            hint=f'add the number of the update, for example version="{release.first_update}"',
            argument="version",
        )
    if release is None and version in _IMAGE_RELEASES:
        raise CallError(
            f"install.cuda(): CUDA {version} has no wheels, only NVIDIA's image",
            hint='remove provider="wheels", or use a version from "11.8" on',
            argument="provider",
        )
    if release is None:
        raise _make_version_error(version)
    _check_cudnn(cudnn)
    if flavor == "devel" and "crt" not in release.components:
        raise CallError(
            f"install.cuda(): NVIDIA has no wheel of nvcc for CUDA {version}, only for CUDA 13",
            hint=f'use provider="image" (nvidia/cuda:{version}…-devel), or version="13.0"',
            argument="flavor",
        )
    _check_components(call["components"], release)
    toolkit = CudaToolkit(version, cudnn, flavor, call["components"], span=call.span)
    env.declare_once("install.cuda", toolkit)


def _is_image_release(version: str, release: CudaRelease | None) -> bool:
    """Return whether a version can be that of an image: complete."""
    return version in _IMAGE_RELEASES or (release is not None and len(release.numbers) == 3)


#: Releases that exist as images, but not as wheels (https://hub.docker.com/r/nvidia/cuda).
_IMAGE_RELEASES = (
    *("10.2.89", "11.0.3", "11.1.1", "11.2.0", "11.2.1", "11.2.2", "11.3.0", "11.3.1", "11.4.0"),
    *("11.4.1", "11.4.2", "11.4.3", "11.5.0", "11.5.1", "11.5.2", "11.6.0", "11.6.1", "11.6.2"),
    *("11.7.0", "11.7.1"),
)


def _check_image_call(env: EnvironmentBuilder, call: BoundCall) -> None:
    if call["components"]:
        raise CallError(
            f"install.cuda(): components of CUDA {call['version']} come only as NVIDIA's image",
            hint='remove components, or use a version from "11.8" on',
            argument="components",
        )


def _make_version_error(version: str) -> CallError:
    known = (*_IMAGE_RELEASES, *list_releases())
    near = " or ".join(f'"{name}"' for name in list_nearest(version, known))
    return CallError(
        f"install.cuda(): unknown version of CUDA: {version}"
        if version
        else "install.cuda(): empty version",
        hint=f"the nearest versions are {near}",
        argument="version",
    )


def _check_cudnn(cudnn: str) -> None:
    if cudnn not in ("", "*") and not parse_version(cudnn):
        raise CallError(
            f"install.cuda(): '{cudnn}' is not a version of cuDNN",
            hint='versions are "9", "9.1" and "9.1.0", for example; cudnn="" installs none',
            argument="cudnn",
        )


def _check_components(components: tuple[str, ...], release: CudaRelease) -> None:
    for name in components:
        if name not in release.components:
            raise CallError(
                f"install.cuda(): CUDA {release.name} has no component '{name}'",
                hint=did_you_mean(
                    name,
                    release.components,
                    otherwise=f"its components are {', '.join(release.components)}",
                ),
                argument="components",
            )


FUNCTIONS = (
    BuildFunction(
        "install.cuda",
        "Install CUDA and cuDNN: NVIDIA's Python wheels, each a layer, found by the dynamic loader "
        "without `LD_LIBRARY_PATH`. They are the wheels that PyTorch and JAX require, so nothing "
        "is installed twice. `danlu lock` checks that the frameworks are built for this CUDA.",
        (
            Parameter(
                "version",
                TEXT,
                "`12.4.1` is exactly that release; `12.4` any update of it that suits the other "
                "packages",
            ),
            Parameter(
                "cudnn",
                TEXT,
                "`9`, `8.9` or `9.1.0`; empty for none. If not given, one that suits the other "
                "packages (8 with CUDA 11)",
                None,
            ),
            Parameter(
                "flavor",
                choice(_FLAVORS),
                "as of NVIDIA's images: the CUDA runtime, all its libraries, or also `nvcc` and "
                "headers (from CUDA 13 on)",
                "runtime",
            ),
            Parameter(
                "components",
                TEXTS,
                f"additional components: {', '.join(f'`{name}`' for name in COMPONENTS)}",
                (),
            ),
            Parameter(
                "provider",
                choice(("", "wheels", "image")),
                "`image` replaces an Ubuntu base by NVIDIA's image, as envd does. Empty: `wheels`, "
                "and `image` for versions that have none (11.7 and older)",
                "",
            ),
        ),
        declare=_declare_cuda,
        unique=True,
        example='install.cuda(version="12.4.1", cudnn="9")',
    ),
)
