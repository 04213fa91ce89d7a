"""Releases of CUDA and cuDNN: the versions of NVIDIA's wheels they consist of, and their drivers.

Data and look-ups only. Which wheels a release consists of is what NVIDIA's metapackage
``cuda-toolkit`` of that version requires, so that a new release needs no change here. Sources:

* updates of CUDA 12: the requirements of that metapackage on PyPI, and for 12.5.1 table 1 of its
  release notes;
* drivers: tables 2 and 3 of the release notes of the CUDA Toolkit
  (https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

import msgspec

#: NVIDIA's wheels by the name of the component, without the suffix ``-cu11`` or ``-cu12``. From
#: CUDA 13 on, the names have no suffix.
COMPONENTS: Mapping[str, str] = {
    "cudart": "nvidia-cuda-runtime",
    "nvrtc": "nvidia-cuda-nvrtc",
    "cublas": "nvidia-cublas",
    "cufft": "nvidia-cufft",
    "cufile": "nvidia-cufile",
    "curand": "nvidia-curand",
    "cusolver": "nvidia-cusolver",
    "cusparse": "nvidia-cusparse",
    "npp": "nvidia-npp",
    "nvjpeg": "nvidia-nvjpeg",
    "nvjitlink": "nvidia-nvjitlink",
    "nvfatbin": "nvidia-nvfatbin",
    "nvtx": "nvidia-nvtx",
    "opencl": "nvidia-cuda-opencl",
    "cupti": "nvidia-cuda-cupti",
    "cccl": "nvidia-cuda-cccl",
    "crt": "nvidia-cuda-crt",
    "nvcc": "nvidia-cuda-nvcc",
    "nvvm": "nvidia-nvvm",
    "nvml": "nvidia-nvml-dev",
    "profiler": "nvidia-cuda-profiler-api",
    "sanitizer": "nvidia-cuda-sanitizer-api",
}

#: NVIDIA's package that requires the wheels of a release; its extras are the components.
METAPACKAGE = "cuda-toolkit"

#: Components that not every release has: the first one that does.
_FIRST_RELEASES: Mapping[str, tuple[int, ...]] = {
    "nvjitlink": (12, 0),
    "opencl": (12, 0),
    "nvfatbin": (12, 4),
    "cufile": (12, 6, 3),
    "crt": (13, 0),
    "nvvm": (13, 0),
}

#: The components of CUDA 12 whose versions are not CUDA's own, from the first to the last update.
#: PyTorch's wheels for CUDA 12 mix the updates of a release, which a metapackage does not admit;
#: since CUDA 13 they require the metapackage themselves.
_UPDATES: Mapping[tuple[int, ...], str] = {
    (12, 0): (
        "cufft=11.0.0.21..11.0.1.95 curand=10.3.1.50..10.3.1.124 cusolver=11.4.2.57..11.4.3.1 "
        "cusparse=12.0.0.76..12.0.1.140 npp=12.0.0.30..12.0.1.104 nvjpeg=12.0.0.28..12.0.1.102"
    ),
    (12, 1): (
        "cufft=11.0.2.4..11.0.2.54 curand=10.3.2.56..10.3.2.106 cusolver=11.4.4.55..11.4.5.107 "
        "cusparse=12.0.2.55..12.1.0.106 npp=12.0.2.50..12.1.0.40 nvjpeg=12.1.0.39..12.2.0.2"
    ),
    (12, 2): (
        "cufft=11.0.8.15..11.0.8.103 curand=10.3.3.53..10.3.3.141 cusolver=11.5.0.53..11.5.2.141 "
        "cusparse=12.1.1.53..12.1.2.141 npp=12.1.1.14..12.2.1.4 nvjpeg=12.1.1.14..12.2.2.4"
    ),
    (12, 3): (
        "cufft=11.0.11.19..11.0.12.1 curand=10.3.4.52..10.3.4.107 cusolver=11.5.3.52..11.5.4.101 "
        "cusparse=12.1.3.153..12.2.0.103 npp=12.2.2.32..12.2.3.2 nvjpeg=12.2.3.32..12.3.0.81"
    ),
    (12, 4): (
        "cufft=11.2.0.44..11.2.1.3 curand=10.3.5.119..10.3.5.147 cusolver=11.6.0.99..11.6.1.9 "
        "cusparse=12.3.0.142..12.3.1.170 npp=12.2.5.2..12.2.5.30 nvjpeg=12.3.1.89..12.3.1.117"
    ),
    (12, 5): (
        "cufft=11.2.3.18..11.2.3.61 curand=10.3.6.39..10.3.6.82 cusolver=11.6.2.40..11.6.3.83 "
        "cusparse=12.4.1.24..12.5.1.3 npp=12.3.0.116..12.3.0.159 nvjpeg=12.3.2.38..12.3.2.81"
    ),
    (12, 6): (
        "cufft=11.2.6.28..11.3.0.4 cufile=1.11.1.6..1.11.1.6 curand=10.3.7.37..10.3.7.77 "
        "cusolver=11.6.4.38..11.7.1.2 cusparse=12.5.2.23..12.5.4.2 npp=12.3.1.23..12.3.1.54 "
        "nvjpeg=12.3.3.23..12.3.3.54"
    ),
    (12, 8): (
        "cufft=11.3.3.41..11.3.3.83 cufile=1.13.0.11..1.13.1.3 curand=10.3.9.55..10.3.9.90 "
        "cusolver=11.7.2.55..11.7.3.90 cusparse=12.5.7.53..12.5.8.93 npp=12.3.3.65..12.3.3.100 "
        "nvjpeg=12.3.5.57..12.3.5.92"
    ),
    (12, 9): (
        "cufft=11.4.0.6..11.4.1.4 cufile=1.14.0.30..1.14.1.1 curand=10.3.10.19..10.3.10.19 "
        "cusolver=11.7.4.40..11.7.5.82 cusparse=12.5.9.5..12.5.10.65 npp=12.4.0.27..12.4.1.87 "
        "nvjpeg=12.4.0.16..12.4.0.76"
    ),
}

#: CUDA 12.5.1, whose metapackage has the requirements of 12.5.0's: the newest wheels of 12.5.
_WITHOUT_METAPACKAGE = (12, 5, 1)

#: The driver branch that came with each CUDA, and therefore supports it fully.
_DRIVER_BRANCHES: Mapping[int, tuple[int, int]] = {
    450: (11, 0),
    455: (11, 1),
    460: (11, 2),
    465: (11, 3),
    470: (11, 4),
    495: (11, 5),
    510: (11, 6),
    515: (11, 7),
    520: (11, 8),
    525: (12, 0),
    530: (12, 1),
    535: (12, 2),
    545: (12, 3),
    550: (12, 4),
    555: (12, 5),
    560: (12, 6),
    565: (12, 7),
    570: (12, 8),
    575: (12, 9),
    580: (13, 0),
    590: (13, 1),
    595: (13, 2),
    610: (13, 3),
}

#: The oldest driver for all releases of a major version ("minor version compatibility").
_MINIMUM_DRIVERS: Mapping[int, str] = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


class CudaRelease(msgspec.Struct, frozen=True):
    """A release of CUDA (``12.4.1``), or all updates of one (``12.4``)."""

    name: str

    @property
    def numbers(self) -> tuple[int, ...]:
        """(12, 4, 1) of 12.4.1."""
        return parse_version(self.name)

    @property
    def major(self) -> int:
        """12 of 12.4.1."""
        return self.numbers[0]

    @property
    def minor(self) -> tuple[int, ...]:
        """(12, 4) of 12.4.1."""
        return self.numbers[:2]

    @property
    def first_update(self) -> str:
        """12.4.0 of 12.4."""
        return ".".join(str(number) for number in (*self.numbers, 0, 0)[:3])

    @property
    def suffix(self) -> str:
        """What NVIDIA's names of wheels end with: ``-cu12``."""
        return f"-cu{self.major}" if self.major < 13 else ""

    @property
    def components(self) -> tuple[str, ...]:
        """The components that this release, or its last update, has."""
        release = self.numbers if len(self.numbers) > 2 else (*self.numbers, 99)
        return tuple(name for name in COMPONENTS if _FIRST_RELEASES.get(name, ()) <= release)

    def requirements(self, components: Iterable[str]) -> tuple[str, ...]:
        """Return the requirements for some components: NVIDIA's metapackage, or their own wheels.

        All of them are versions of this release, or of any of its updates if its name admits them.
        """
        updates = _UPDATES.get(self.minor)
        if updates and (len(self.numbers) == 2 or self.numbers == _WITHOUT_METAPACKAGE):
            ranges = dict(item.split("=") for item in updates.split())
            return tuple(self._require_wheel(name, ranges.get(name, "")) for name in components)
        return (f"{METAPACKAGE}[{','.join(components)}]=={self.name}.*",)

    def _require_wheel(self, component: str, versions: str) -> str:
        name = COMPONENTS[component] + self.suffix
        oldest, _, newest = versions.partition("..")
        if not versions:
            return f"{name}=={self.major}.{self.minor[1]}.*"
        return f"{name}>={oldest},<={newest}"


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version such as ``12.4.1``; empty if it is anything else."""
    parts = text.split(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts):
        return ()
    return tuple(int(part) for part in parts)


def list_releases() -> tuple[str, ...]:
    """Return the releases up to CUDA 12 that have wheels, without their updates, oldest first."""
    return ("11.8", *(".".join(map(str, minor)) for minor in _UPDATES))


def find_release(version: str) -> CudaRelease | None:
    """Return the release ``version`` (``12.4.1``), or all updates of it (``12.4``, ``12``).

    ``11`` and ``12`` are their newest. Returns None for a text that is not a version, and for one
    up to CUDA 12 that has no wheels. Whether a newer version or an update exists is left to the
    package index.
    """
    numbers = parse_version(version)
    if not numbers or len(numbers) > 3:
        return None
    name = ".".join(str(number) for number in numbers)
    if numbers[0] >= 13:
        return CudaRelease(name)
    covered = [
        known for known in list_releases() if parse_version(known)[: len(numbers)] == numbers[:2]
    ]
    if not covered:
        return None
    return CudaRelease(name if len(numbers) > 1 else covered[-1])


def list_nearest(version: str, known: Iterable[str]) -> tuple[str, ...]:
    """Return the two versions nearest to one that does not exist, in ascending order."""
    ordered = sorted(known, key=parse_version)
    wanted = parse_version(version)
    if not wanted:
        return tuple(ordered[-2:])
    position = bisect_left(ordered, wanted, key=parse_version)
    start = max(min(position - 1, len(ordered) - 2), 0)
    return tuple(ordered[start : start + 2])


def find_minimum_driver(cuda: tuple[int, int]) -> str:
    """Return the oldest driver that runs programs built with a CUDA; empty if unknown."""
    return _MINIMUM_DRIVERS.get(cuda[0], "")


def find_supported_cuda(driver: str) -> tuple[int, int] | None:
    """Return the newest CUDA that a driver (``535.183.01``) supports fully; None if unknown.

    Of a branch newer than this table, the newest CUDA in it.
    """
    numbers = parse_version(driver)
    branches = [branch for branch in _DRIVER_BRANCHES if numbers and branch <= numbers[0]]
    return _DRIVER_BRANCHES[max(branches)] if branches else None
