"""Check which CUDA the locked packages are built for, against ``install.cuda`` and the driver.

Rules: a program runs with a driver that supports the same major version of CUDA or a newer one
("minor version compatibility", https://docs.nvidia.com/deploy/cuda-compatibility/). Libraries of
another major version have other names (``libcudart.so.12``), so a framework does not find them.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from danlu.environment.cuda_releases import (
    find_minimum_driver,
    find_supported_cuda,
    parse_version,
)
from danlu.environment.lock import LockedPackage
from danlu.util.sanitize import escape_unprintable

#: TensorFlow's wheel contains no CUDA and requires none: what it was tested with, from
#: https://www.tensorflow.org/install/source#gpu (release: CUDA, major version of cuDNN).
_TENSORFLOW = (
    ((2, 11), (11, 2), 8),
    ((2, 12), (11, 8), 8),
    ((2, 15), (12, 2), 8),
    ((2, 16), (12, 3), 8),
    ((2, 18), (12, 5), 9),
)

#: Frameworks whose wheels require NVIDIA's wheels of the CUDA that they are built for.
_REQUIRING = frozenset({"torch", "paddlepaddle-gpu"})

_LOCAL_VERSION = re.compile(r"(?:\+cu|\.post|-cu)(1[0-9])([0-9])(?:$|[^0-9])")
_PLUGIN = re.compile(r"(?:jax-cuda|cupy-cuda)(1[0-9])(?:x|-plugin)")
_RUNTIME = re.compile(r"nvidia-cuda-runtime(-cu1[0-9])?")
_CUDNN = re.compile(r"nvidia-cudnn-cu(1[0-9])")


_REQUIRE = "NVIDIA_REQUIRE_"
_CONDITION = re.compile(r"([a-z]+)(>=|<=|!=|=|>|<)(.+)")
_COMPARISONS = {
    ">=": operator.ge,
    "<=": operator.le,
    "!=": operator.ne,
    "=": operator.eq,
    ">": operator.gt,
    "<": operator.lt,
}


class CudaUse(msgspec.Struct, frozen=True):
    """A package that is built for a CUDA.

    ``cuda`` is the version, only its major number if the package works with all of that;
    ``cudnn`` is the major version of cuDNN that it loads, 0 if unknown or its own.
    """

    name: str
    version: str
    cuda: tuple[int, ...]
    cudnn: int = 0

    @property
    def label(self) -> str:
        """``torch 2.4.0+cu121``."""
        return f"{self.name} {self.version}"

    @property
    def cuda_label(self) -> str:
        """``CUDA 12.1``."""
        return f"CUDA {'.'.join(str(number) for number in self.cuda)}"


class CudaConflict(msgspec.Struct, frozen=True):
    """What does not fit together, and what to do."""

    message: str
    hint: str


def find_uses(packages: Iterable[LockedPackage]) -> tuple[CudaUse, ...]:
    """Return the frameworks among ``packages`` that are built for a CUDA, by name.

    Without any framework, NVIDIA's own runtime if that is among them.
    """
    by_name = {package.name: package for package in packages}
    runtimes = [package for name, package in by_name.items() if _RUNTIME.fullmatch(name)]
    # With two of them, the framework's is the newer one, or install.cuda's check reports it.
    runtime = max((parse_version(item.version)[:2] for item in runtimes), default=())
    found = (_find_use(by_name[name], runtime) for name in sorted(by_name))
    uses = [use for use in found if use is not None]
    if not uses and runtime:
        newest = max(runtimes, key=lambda item: parse_version(item.version))
        uses.append(CudaUse(newest.name, newest.version, runtime))
    return tuple(uses)


def _find_use(package: LockedPackage, runtime: tuple[int, ...]) -> CudaUse | None:
    name, version = package.name, package.version
    if plugin := _PLUGIN.fullmatch(name):
        # jaxlib loads cuDNN 9 since 0.4.30, and plugins for CUDA 13 never loaded an older one.
        is_new = name.startswith("jax") and parse_version(version.partition("+")[0]) >= (0, 4, 30)
        return CudaUse(name, version, (int(plugin[1]),), 9 if is_new else 0)
    if name == "tensorflow":
        return _find_tensorflow_use(version) if runtime else None
    if name not in _REQUIRING or "+cpu" in version:
        return None
    if local := _LOCAL_VERSION.search(version):
        return CudaUse(name, version, (int(local[1]), int(local[2])))
    return CudaUse(name, version, runtime) if runtime else None


def _find_tensorflow_use(version: str) -> CudaUse | None:
    release = parse_version(".".join(re.findall(r"\d+", version)[:2]))
    for since, cuda, cudnn in reversed(_TENSORFLOW):
        if release >= since:
            return CudaUse("tensorflow", version, cuda, cudnn)
    return None


def find_version_conflicts(
    cuda: str, packages: Sequence[LockedPackage]
) -> tuple[CudaConflict, ...]:
    """Return why the locked packages do not work with the CUDA that the build file asks for."""
    major = parse_version(cuda)[0]
    conflicts = []
    for use in find_uses(packages):
        if use.cuda[0] != major:
            wanted = ".".join(str(number) for number in use.cuda)
            conflicts.append(
                CudaConflict(
                    f"{use.label} is built for {use.cuda_label}, but install.cuda asks for"
                    f" CUDA {cuda}",
                    f'use install.cuda(version="{wanted}"), or a version of {use.name} that is'
                    f" built for CUDA {major}",
                )
            )
        elif conflict := _find_cudnn_conflict(use, packages):
            conflicts.append(conflict)
    return tuple(conflicts)


def _find_cudnn_conflict(use: CudaUse, packages: Iterable[LockedPackage]) -> CudaConflict | None:
    for package in packages:
        match = _CUDNN.fullmatch(package.name)
        if match is None or not use.cudnn or int(match[1]) != use.cuda[0]:
            continue
        if parse_version(package.version)[0] != use.cudnn:
            return CudaConflict(
                f"{use.label} needs cuDNN {use.cudnn}, but install.cuda installs"
                f" cuDNN {package.version}",
                f'use install.cuda(…, cudnn="{use.cudnn}")',
            )
    return None


def find_driver_conflict(driver: str, packages: Iterable[LockedPackage]) -> CudaConflict | None:
    """Return why this machine's driver (``535.183.01``) does not run the locked packages.

    None if it does, or if that is unknown.
    """
    supported = find_supported_cuda(driver)
    if supported is None:
        return None
    for use in find_uses(packages):
        if use.cuda[0] > supported[0]:
            minimum = find_minimum_driver((use.cuda[0], 0))
            install = f"install driver {minimum} or newer, or " if minimum else ""
            return CudaConflict(
                f"driver {driver} supports CUDA {supported[0]}.{supported[1]};"
                f" {use.label} needs {use.cuda_label}",
                f"{install}use a version of {use.name} that is built for CUDA {supported[0]}",
            )
    return None


def find_image_conflict(driver: str, variables: Mapping[str, str]) -> CudaConflict | None:
    """Return why this machine's driver does not run an image with these variables.

    NVIDIA's images say in ``NVIDIA_REQUIRE_…`` what they need: alternatives with spaces between
    them, each of conditions with commas (NVIDIA Container Toolkit, "Constraints"). Those about the
    kind of GPU count as met. None if the driver runs it, or if that is unknown.
    """
    supported = find_supported_cuda(driver)
    if supported is None or variables.get("NVIDIA_DISABLE_REQUIRE", "") not in ("", "0", "false"):
        return None
    known = {"cuda": supported, "driver": parse_version(driver)}
    for name, text in sorted(variables.items()):
        alternatives = text.split() if name.startswith(_REQUIRE) else []
        if alternatives and not any(
            all(_is_met(condition, known) for condition in alternative.split(","))
            for alternative in alternatives
        ):
            wanted = _CONDITION.fullmatch(alternatives[0])
            cuda = parse_version(wanted[3])[:2] if wanted and wanted[1] == "cuda" else ()
            minimum = find_minimum_driver((cuda[0], cuda[1])) if len(cuda) > 1 else ""
            return CudaConflict(
                f"driver {driver} supports CUDA {supported[0]}.{supported[1]};"
                f" the image needs {escape_unprintable(alternatives[0])}",
                f"install driver {minimum} or newer, or use an image for an older CUDA"
                if minimum
                else "install a newer driver, or use an image for an older CUDA",
            )
    return None


def _is_met(condition: str, known: Mapping[str, Sequence[int]]) -> bool:
    match = _CONDITION.fullmatch(condition)
    own, wanted = (known.get(match[1]), parse_version(match[3])) if match else (None, ())
    if match is None or own is None or not wanted:
        return True
    return bool(_COMPARISONS[match[2]](tuple(own[: len(wanted)]), wanted))
