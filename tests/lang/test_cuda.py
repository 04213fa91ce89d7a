"""``install.cuda``: known releases, their wheels, and rejected arguments."""

from __future__ import annotations

import pytest
from packaging.requirements import Requirement
from packaging.version import Version

from danlu.environment.cuda_compatibility import (
    find_driver_conflict,
    find_uses,
    find_version_conflicts,
)
from danlu.environment.cuda_releases import (
    COMPONENTS,
    find_release,
    find_supported_cuda,
    list_nearest,
    list_releases,
)
from danlu.environment.lock import LockedPackage
from danlu.errors import BuildFileError
from danlu.lang.functions.cuda import CudaToolkit
from tests.lang.support import body


def packages(*names: str) -> tuple[LockedPackage, ...]:
    pairs = (name.split(" ") for name in names)
    return tuple(LockedPackage(name, version, "index") for name, version in pairs)


def require(version: str, *components: str) -> tuple[str, ...]:
    release = find_release(version)
    assert release is not None
    return release.requirements(components)


def test_complete_version_is_that_of_nvidias_metapackage() -> None:
    assert require("12.4.1", "cudart", "cublas") == ("cuda-toolkit[cudart,cublas]==12.4.1.*",)
    assert require("13.0", "cudart") == ("cuda-toolkit[cudart]==13.0.*",)
    assert require("11.8", "cudart") == ("cuda-toolkit[cudart]==11.8.*",)
    assert require("99.1.2", "cudart") == ("cuda-toolkit[cudart]==99.1.2.*",)


def test_minor_version_of_cuda_12_admits_the_wheels_of_all_its_updates() -> None:
    nvrtc, cufft = (Requirement(text) for text in require("12.6", "nvrtc", "cufft"))
    # PyTorch's wheels for CUDA 12.6 mix 12.6.2 and 12.6.3.
    assert nvrtc.name == "nvidia-cuda-nvrtc-cu12"
    assert all(nvrtc.specifier.contains(version) for version in ("12.6.77", "12.6.85"))
    assert not any(nvrtc.specifier.contains(version) for version in ("12.5.82", "12.8.61"))
    assert all(cufft.specifier.contains(version) for version in ("11.2.6.28", "11.3.0.4"))
    assert not any(cufft.specifier.contains(version) for version in ("11.2.3.61", "11.3.3.41"))


def test_release_whose_metapackage_is_wrong_has_its_own_wheels() -> None:
    assert require("12.5.1", "cudart") == ("nvidia-cuda-runtime-cu12==12.5.*",)


@pytest.mark.parametrize("version", list_releases())
def test_every_release_has_valid_requirements(version: str) -> None:
    release = find_release(version)
    assert release is not None
    assert {"cudart", "nvrtc", "cublas", "nvcc"} <= set(release.components) <= COMPONENTS.keys()
    for text in release.requirements(release.components):
        bounds = sorted(Version(item.version.rstrip(".*")) for item in Requirement(text).specifier)
        assert Requirement(text).specifier.contains(bounds[0])
        assert Requirement(text).specifier.contains(bounds[-1])


@pytest.mark.parametrize(
    ("version", "component", "exists"),
    [
        ("12.6", "cufile", True),
        ("12.6.2", "cufile", False),
        ("12.6.3", "cufile", True),
        ("11.8", "nvjitlink", False),
        ("12.9", "crt", False),
        ("13.0.1", "crt", True),
        ("13", "crt", True),
    ],
)
def test_components_of_a_release(version: str, component: str, exists: bool) -> None:
    release = find_release(version)
    assert release is not None
    assert (component in release.components) == exists


def test_major_version_is_the_newest_of_its_minors() -> None:
    release = find_release("12")
    assert release is not None
    assert release.name == "12.9"


@pytest.mark.parametrize(
    "version", ["", "12.7", "12.7.1", "11.7", "twelve", "12.", "-1", "12.4.1.0"]
)
def test_unknown_release_is_not_found(version: str) -> None:
    assert find_release(version) is None


def test_nearest_versions_of_a_missing_one() -> None:
    assert list_nearest("12.7", list_releases()) == ("12.6", "12.8")
    assert list_nearest("99", list_releases())[-1] == list_releases()[-1]


REFUSED = [
    ("install.cuda('12.7')", "unknown version of CUDA: 12.7", '"12.6" or "12.8"'),
    ("install.cuda('')", "empty version", "nearest"),
    ("install.cuda('12.4', cudnn='new')", "'new' is not a version of cuDNN", '"9.1.0"'),
    ("install.cuda('12.4', flavor='devel')", "no wheel of nvcc", "provider"),
    ("install.cuda('12.4', flavor='develop')", "must be one of base, runtime, devel", "devel"),
    ("install.cuda('12.4', components=['cublass'])", "no component 'cublass'", "cublas"),
    ("install.cuda('11.2.2', components=['npp'])", "only as NVIDIA's image", "11.8"),
    ("base(os='debian12'); install.cuda('11.2.2')", "not made for debian12", "ubuntu20.04"),
    ("base(image='a:1'); install.cuda('11.7.1')", "not made for a:1", "ubuntu22.04"),
    ("install.cuda('12.4', provider='image')", "images have no CUDA 12.4, only", '"12.4.0"'),
    ("install.cuda('12.04', provider='image')", "images have no CUDA 12.04", '"12.4.0"'),
    ("install.cuda('12.7', provider='image')", "unknown version of CUDA: 12.7", '"12.6"'),
    ("install.cuda('11.2.2', provider='wheels')", "CUDA 11.2.2 has no wheels", "provider"),
    ("base(os='debian12'); install.cuda('12.4.1', provider='image')", "not made for", "wheels"),
    ("install.cuda('12.4'); install.cuda('12.6')", "twice", "keep one"),
]


@pytest.mark.parametrize(("text", "message", "hint"), REFUSED, ids=[row[0] for row in REFUSED])
def test_invalid_call_is_refused_with_what_exists(text: str, message: str, hint: str) -> None:
    with pytest.raises(BuildFileError) as caught:
        body(text)
    assert message in caught.value.message
    assert hint in caught.value.hint
    assert caught.value.span is not None


@pytest.mark.parametrize(
    ("text", "image"),
    [
        ("base(dev=True); install.cuda('11.2.2', '8')", "11.2.2-cudnn8-runtime-ubuntu20.04"),
        ("install.cuda('10.2.89', '8')", "10.2.89-cudnn8-runtime-ubuntu18.04"),
        ("install.cuda('11.7.1', '8')", "11.7.1-cudnn8-runtime-ubuntu22.04"),
        (
            "base(image='docker.io/library/ubuntu:20.04'); install.cuda('11.7.1', '8')",
            "11.7.1-cudnn8-runtime-ubuntu20.04",
        ),
    ],
)
def test_nvidias_image_replaces_dockers_image_of_ubuntu(text: str, image: str) -> None:
    assert body(text).base.image == f"nvidia/cuda:{image}"


@pytest.mark.parametrize(
    ("version", "extras"),
    [
        ("12.4.1", {"cudart", "cublas"}),
        ("12.9.1", {"cudart", "cublas", "nvrtc"}),
        ("13.0.1", {"cudart", "cublas", "nvrtc"}),
    ],
)
def test_cudnn_comes_with_the_libraries_of_that_cuda(version: str, extras: set[str]) -> None:
    (packages,) = CudaToolkit(version, "9.1", "base").python_packages()
    toolkit, cudnn = (Requirement(name) for name in packages.names)
    assert toolkit.extras == extras
    assert str(cudnn) == f"nvidia-cudnn-cu{version[:2]}==9.1.*"


def test_flavors_are_those_of_the_images() -> None:
    base, runtime, devel = (
        Requirement(CudaToolkit("13.0", "", flavor).python_packages()[0].names[0]).extras
        for flavor in ("base", "runtime", "devel")
    )
    assert base < runtime < devel
    assert CudaToolkit("13.0", "", "devel").system_packages() == ("g++",)
    assert CudaToolkit("13.0", "", "runtime").system_packages() == ()


def test_cudnn_is_free_unless_it_is_named_but_8_for_cuda_11() -> None:
    assert "nvidia-cudnn-cu12<10" in CudaToolkit("12.4").python_packages()[0].names
    assert "nvidia-cudnn-cu11==8.*" in CudaToolkit("11.8").python_packages()[0].names


USES = [
    (("torch 2.4.0+cu121",), "torch 2.4.0+cu121 CUDA 12.1"),
    (("torch 2.13.0+cu130",), "torch 2.13.0+cu130 CUDA 13.0"),
    (("torch 2.7.0", "nvidia-cuda-runtime-cu12 12.6.77"), "torch 2.7.0 CUDA 12.6"),
    (("torch 2.13.0", "nvidia-cuda-runtime 13.0.96"), "torch 2.13.0 CUDA 13.0"),
    (("torch 2.7.0+cpu", "nvidia-cuda-runtime-cu12 12.6.77"), "nvidia-cuda-runtime-cu12 12.6.77"),
    (("torch 2.7.0",), ""),
    (("jax-cuda12-plugin 0.4.35", "jax 0.4.35"), "jax-cuda12-plugin 0.4.35 CUDA 12"),
    (("paddlepaddle-gpu 2.6.1.post120",), "paddlepaddle-gpu 2.6.1.post120 CUDA 12.0"),
    (("cupy-cuda11x 13.0",), "cupy-cuda11x 13.0 CUDA 11"),
    (("tensorflow 2.18.0", "nvidia-cuda-runtime-cu12 12.5.82"), "tensorflow 2.18.0 CUDA 12.5"),
    (("tensorflow 2.18.0",), ""),
]


@pytest.mark.parametrize(("names", "use"), USES, ids=[" ".join(row[0]) for row in USES])
def test_cuda_of_a_framework_is_known_from_its_wheels(names: tuple[str, ...], use: str) -> None:
    results = [f"{item.label} {item.cuda_label}" for item in find_uses(packages(*names))]
    assert "".join(results).startswith(use)
    assert bool(results) == bool(use)


def test_framework_for_another_major_version_is_a_conflict() -> None:
    (conflict,) = find_version_conflicts("11.8.0", packages("torch 2.4.0+cu121"))
    assert conflict.message == (
        "torch 2.4.0+cu121 is built for CUDA 12.1, but install.cuda asks for CUDA 11.8.0"
    )
    assert 'install.cuda(version="12.1")' in conflict.hint


def test_framework_for_another_minor_version_does_not_conflict() -> None:
    assert not find_version_conflicts("12.4", packages("torch 2.4.0+cu121"))


def test_tensorflow_needs_its_cudnn() -> None:
    old = packages(
        "tensorflow 2.18.0", "nvidia-cuda-runtime-cu12 12.5.82", "nvidia-cudnn-cu12 8.9.7.29"
    )
    (conflict,) = find_version_conflicts("12.5", old)
    assert "needs cuDNN 9, but install.cuda installs cuDNN 8.9.7.29" in conflict.message
    assert 'cudnn="9"' in conflict.hint


DRIVERS = [
    ("470.57.02", (11, 4)),
    ("535.183.01", (12, 2)),
    ("550.54.15", (12, 4)),
    ("580.65.06", (13, 0)),
    ("999.1", (13, 3)),
    ("340.108", None),
    ("garbage", None),
]


@pytest.mark.parametrize(("driver", "cuda"), DRIVERS)
def test_cuda_that_a_driver_supports(driver: str, cuda: tuple[int, int] | None) -> None:
    assert find_supported_cuda(driver) == cuda


def test_driver_that_is_too_old_is_explained_with_what_to_install() -> None:
    conflict = find_driver_conflict("535.183.01", packages("torch 2.13.0+cu130"))
    assert conflict is not None
    assert conflict.message == (
        "driver 535.183.01 supports CUDA 12.2; torch 2.13.0+cu130 needs CUDA 13.0"
    )
    assert conflict.hint == (
        "install driver 580.65.06 or newer, or use a version of torch that is built for CUDA 12"
    )


@pytest.mark.parametrize(
    ("driver", "package"),
    [
        ("535.183.01", "torch 2.8.0+cu128"),  # minor version compatibility
        ("580.65.06", "torch 2.4.0+cu118"),
        ("580.65.06", "torch 2.13.0+cu130"),
        ("340.108", "torch 2.13.0+cu130"),
        ("535.183.01", "numpy 2.0"),
    ],
)
def test_driver_runs_the_same_or_an_older_major_version(driver: str, package: str) -> None:
    assert find_driver_conflict(driver, packages(package)) is None


@pytest.mark.parametrize(
    ("reason", "hint"),
    [
        (
            "cuda-toolkit[nvrtc]==12.4.1 depends on nvidia-cuda-nvrtc-cu12==12.4.127.* and"
            " torch==2.7.0 depends on nvidia-cuda-nvrtc-cu12{sys_platform == 'linux'}==12.6.77",
            'built for CUDA 12.6: use install.cuda(version="12.6")',
        ),
        (
            "cuda-toolkit[cublas]==12.4.1 depends on nvidia-cublas-cu12==12.4.5.8.* and"
            " torch==2.7.0 depends on nvidia-cublas-cu12==12.6.4.1",
            'built for CUDA 12.6: use install.cuda(version="12.6")',
        ),
        (
            "only cuda-toolkit[cublas]<12.4.1 is available and you require"
            " cuda-toolkit[cublas]==12.4.1.*",
            'install.cuda(version="12.4"), which admits all updates',
        ),
    ],
)
def test_resolver_conflict_says_which_cuda_fits(reason: str, hint: str) -> None:
    assert hint in CudaToolkit("12.4.1").explain_conflict(reason)
    assert CudaToolkit("12.4.1").explain_conflict("numpy does not exist") == ""
