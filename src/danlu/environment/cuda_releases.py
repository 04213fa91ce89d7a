"""Releases of CUDA and cuDNN: the versions of NVIDIA's wheels they consist of, and their drivers.

Data and look-ups only. Sources:

* components of a release: the requirements of NVIDIA's metapackage ``cuda-toolkit`` of that version
  on PyPI. Those of 12.5.1 come from table 1 of its release notes, because the metapackage lists
  12.5.0's;
* cuDNN: the versions of ``nvidia-cudnn-cu11``, ``-cu12`` and ``-cu13`` on PyPI;
* drivers: tables 2 and 3 of the release notes of the CUDA Toolkit
  (https://docs.nvidia.com/cuda/cuda-toolkit-release-notes/).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from functools import cache

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

_RELEASES: Mapping[str, str] = {
    "11.8.0": (
        "cudart=11.8.89 nvrtc=11.8.89 cublas=11.11.3.6 cufft=10.9.0.58 curand=10.3.0.86 "
        "cusolver=11.4.1.48 cusparse=11.7.5.86 npp=11.8.0.86 nvjpeg=11.9.0.86 nvtx=11.8.86 "
        "cupti=11.8.87 cccl=11.8.89 nvcc=11.8.89 nvml=11.8.86 profiler=11.8.86 sanitizer=11.8.86"
    ),
    "12.0.0": (
        "cudart=12.0.107 nvrtc=12.0.76 cublas=12.0.1.189 cufft=11.0.0.21 curand=10.3.1.50 "
        "cusolver=11.4.2.57 cusparse=12.0.0.76 npp=12.0.0.30 nvjpeg=12.0.0.28 nvjitlink=12.0.76 "
        "nvtx=12.0.76 opencl=12.0.76 cupti=12.0.90 cccl=12.0.90 nvcc=12.0.76 nvml=12.0.76 "
        "profiler=12.0.76 sanitizer=12.0.90"
    ),
    "12.0.1": (
        "cudart=12.0.146 nvrtc=12.0.140 cublas=12.0.2.224 cufft=11.0.1.95 curand=10.3.1.124 "
        "cusolver=11.4.3.1 cusparse=12.0.1.140 npp=12.0.1.104 nvjpeg=12.0.1.102 "
        "nvjitlink=12.0.140 nvtx=12.0.140 opencl=12.0.140 cupti=12.0.146 cccl=12.0.140 "
        "nvcc=12.0.140 nvml=12.0.140 profiler=12.0.140 sanitizer=12.0.140"
    ),
    "12.1.0": (
        "cudart=12.1.55 nvrtc=12.1.55 cublas=12.1.0.26 cufft=11.0.2.4 curand=10.3.2.56 "
        "cusolver=11.4.4.55 cusparse=12.0.2.55 npp=12.0.2.50 nvjpeg=12.1.0.39 nvjitlink=12.1.55 "
        "nvtx=12.1.66 opencl=12.1.56 cupti=12.1.62 cccl=12.1.55 nvcc=12.1.66 nvml=12.1.55 "
        "profiler=12.1.55 sanitizer=12.1.55"
    ),
    "12.1.1": (
        "cudart=12.1.105 nvrtc=12.1.105 cublas=12.1.3.1 cufft=11.0.2.54 curand=10.3.2.106 "
        "cusolver=11.4.5.107 cusparse=12.1.0.106 npp=12.1.0.40 nvjpeg=12.2.0.2 nvjitlink=12.1.105 "
        "nvtx=12.1.105 opencl=12.1.105 cupti=12.1.105 cccl=12.1.109 nvcc=12.1.105 nvml=12.1.105 "
        "profiler=12.1.105 sanitizer=12.1.105"
    ),
    "12.2.0": (
        "cudart=12.2.53 nvrtc=12.2.91 cublas=12.2.1.16 cufft=11.0.8.15 curand=10.3.3.53 "
        "cusolver=11.5.0.53 cusparse=12.1.1.53 npp=12.1.1.14 nvjpeg=12.1.1.14 nvjitlink=12.2.91 "
        "nvtx=12.2.53 opencl=12.2.53 cupti=12.2.60 cccl=12.2.53 nvcc=12.2.91 nvml=12.2.81 "
        "profiler=12.2.53 sanitizer=12.2.53"
    ),
    "12.2.1": (
        "cudart=12.2.128 nvrtc=12.2.128 cublas=12.2.4.5 cufft=11.0.8.91 curand=10.3.3.129 "
        "cusolver=11.5.1.129 cusparse=12.1.2.129 npp=12.2.0.5 nvjpeg=12.2.1.2 nvjitlink=12.2.128 "
        "nvtx=12.2.128 opencl=12.2.128 cupti=12.2.131 cccl=12.2.128 nvcc=12.2.128 nvml=12.2.128 "
        "profiler=12.2.128 sanitizer=12.2.128"
    ),
    "12.2.2": (
        "cudart=12.2.140 nvrtc=12.2.140 cublas=12.2.5.6 cufft=11.0.8.103 curand=10.3.3.141 "
        "cusolver=11.5.2.141 cusparse=12.1.2.141 npp=12.2.1.4 nvjpeg=12.2.2.4 nvjitlink=12.2.140 "
        "nvtx=12.2.140 opencl=12.2.140 cupti=12.2.142 cccl=12.2.140 nvcc=12.2.140 nvml=12.2.140 "
        "profiler=12.2.140 sanitizer=12.2.140"
    ),
    "12.3.0": (
        "cudart=12.3.52 nvrtc=12.3.52 cublas=12.3.2.9 cufft=11.0.11.19 curand=10.3.4.52 "
        "cusolver=11.5.3.52 cusparse=12.1.3.153 npp=12.2.2.32 nvjpeg=12.2.3.32 nvjitlink=12.3.52 "
        "nvtx=12.3.52 opencl=12.3.52 cupti=12.3.52 cccl=12.3.52 nvcc=12.3.52 nvml=12.3.52 "
        "profiler=12.3.52 sanitizer=12.3.52"
    ),
    "12.3.1": (
        "cudart=12.3.101 nvrtc=12.3.103 cublas=12.3.4.1 cufft=11.0.12.1 curand=10.3.4.101 "
        "cusolver=11.5.4.101 cusparse=12.2.0.103 npp=12.2.3.2 nvjpeg=12.3.0.81 nvjitlink=12.3.101 "
        "nvtx=12.3.101 opencl=12.3.101 cupti=12.3.101 cccl=12.3.101 nvcc=12.3.103 nvml=12.3.101 "
        "profiler=12.3.101 sanitizer=12.3.101"
    ),
    "12.3.2": (
        "cudart=12.3.101 nvrtc=12.3.107 cublas=12.3.4.1 cufft=11.0.12.1 curand=10.3.4.107 "
        "cusolver=11.5.4.101 cusparse=12.2.0.103 npp=12.2.3.2 nvjpeg=12.3.0.81 nvjitlink=12.3.101 "
        "nvtx=12.3.101 opencl=12.3.101 cupti=12.3.101 cccl=12.3.101 nvcc=12.3.107 nvml=12.3.101 "
        "profiler=12.3.101 sanitizer=12.3.101"
    ),
    "12.4.0": (
        "cudart=12.4.99 nvrtc=12.4.99 cublas=12.4.2.65 cufft=11.2.0.44 curand=10.3.5.119 "
        "cusolver=11.6.0.99 cusparse=12.3.0.142 npp=12.2.5.2 nvjpeg=12.3.1.89 nvjitlink=12.4.99 "
        "nvfatbin=12.4.99 nvtx=12.4.99 opencl=12.4.99 cupti=12.4.99 cccl=12.4.99 nvcc=12.4.99 "
        "nvml=12.4.99 profiler=12.4.99 sanitizer=12.4.99"
    ),
    "12.4.1": (
        "cudart=12.4.127 nvrtc=12.4.127 cublas=12.4.5.8 cufft=11.2.1.3 curand=10.3.5.147 "
        "cusolver=11.6.1.9 cusparse=12.3.1.170 npp=12.2.5.30 nvjpeg=12.3.1.117 nvjitlink=12.4.127 "
        "nvfatbin=12.4.127 nvtx=12.4.127 opencl=12.4.127 cupti=12.4.127 cccl=12.4.127 "
        "nvcc=12.4.131 nvml=12.4.127 profiler=12.4.127 sanitizer=12.4.127"
    ),
    "12.5.0": (
        "cudart=12.5.39 nvrtc=12.5.40 cublas=12.5.2.13 cufft=11.2.3.18 curand=10.3.6.39 "
        "cusolver=11.6.2.40 cusparse=12.4.1.24 npp=12.3.0.116 nvjpeg=12.3.2.38 nvjitlink=12.5.40 "
        "nvfatbin=12.5.39 nvtx=12.5.39 opencl=12.5.39 cupti=12.5.39 cccl=12.5.39 nvcc=12.5.40 "
        "nvml=12.5.39 profiler=12.5.39 sanitizer=12.5.39"
    ),
    "12.5.1": (
        "cudart=12.5.82 nvrtc=12.5.82 cublas=12.5.3.2 cufft=11.2.3.61 curand=10.3.6.82 "
        "cusolver=11.6.3.83 cusparse=12.5.1.3 npp=12.3.0.159 nvjpeg=12.3.2.81 nvjitlink=12.5.82 "
        "nvfatbin=12.5.82 nvtx=12.5.82 opencl=12.5.39 cupti=12.5.82 cccl=12.5.39 nvcc=12.5.82 "
        "nvml=12.5.82 profiler=12.5.39 sanitizer=12.5.81"
    ),
    "12.6.0": (
        "cudart=12.6.37 nvrtc=12.6.20 cublas=12.6.0.22 cufft=11.2.6.28 curand=10.3.7.37 "
        "cusolver=11.6.4.38 cusparse=12.5.2.23 npp=12.3.1.23 nvjpeg=12.3.3.23 nvjitlink=12.6.20 "
        "nvfatbin=12.6.20 nvtx=12.6.37 opencl=12.6.37 cupti=12.6.37 cccl=12.6.37 nvcc=12.6.20 "
        "nvml=12.6.37 profiler=12.6.37 sanitizer=12.6.34"
    ),
    "12.6.1": (
        "cudart=12.6.68 nvrtc=12.6.68 cublas=12.6.1.4 cufft=11.2.6.59 curand=10.3.7.68 "
        "cusolver=11.6.4.69 cusparse=12.5.3.3 npp=12.3.1.54 nvjpeg=12.3.3.54 nvjitlink=12.6.68 "
        "nvfatbin=12.6.68 nvtx=12.6.68 opencl=12.6.68 cupti=12.6.68 cccl=12.6.37 nvcc=12.6.68 "
        "nvml=12.6.68 profiler=12.6.68 sanitizer=12.6.68"
    ),
    "12.6.2": (
        "cudart=12.6.77 nvrtc=12.6.77 cublas=12.6.3.3 cufft=11.3.0.4 curand=10.3.7.77 "
        "cusolver=11.7.1.2 cusparse=12.5.4.2 npp=12.3.1.54 nvjpeg=12.3.3.54 nvjitlink=12.6.77 "
        "nvfatbin=12.6.77 nvtx=12.6.77 opencl=12.6.77 cupti=12.6.80 cccl=12.6.77 nvcc=12.6.77 "
        "nvml=12.6.77 profiler=12.6.77 sanitizer=12.6.77"
    ),
    "12.6.3": (
        "cudart=12.6.77 nvrtc=12.6.85 cublas=12.6.4.1 cufft=11.3.0.4 cufile=1.11.1.6 "
        "curand=10.3.7.77 cusolver=11.7.1.2 cusparse=12.5.4.2 npp=12.3.1.54 nvjpeg=12.3.3.54 "
        "nvjitlink=12.6.85 nvfatbin=12.6.77 nvtx=12.6.77 opencl=12.6.77 cupti=12.6.80 "
        "cccl=12.6.77 nvcc=12.6.85 nvml=12.6.77 profiler=12.6.77 sanitizer=12.6.77"
    ),
    "12.8.0": (
        "cudart=12.8.57 nvrtc=12.8.61 cublas=12.8.3.14 cufft=11.3.3.41 cufile=1.13.0.11 "
        "curand=10.3.9.55 cusolver=11.7.2.55 cusparse=12.5.7.53 npp=12.3.3.65 nvjpeg=12.3.5.57 "
        "nvjitlink=12.8.61 nvfatbin=12.8.55 nvtx=12.8.55 opencl=12.8.55 cupti=12.8.57 "
        "cccl=12.8.55 nvcc=12.8.61 nvml=12.8.55 profiler=12.8.55 sanitizer=12.8.55"
    ),
    "12.8.1": (
        "cudart=12.8.90 nvrtc=12.8.93 cublas=12.8.4.1 cufft=11.3.3.83 cufile=1.13.1.3 "
        "curand=10.3.9.90 cusolver=11.7.3.90 cusparse=12.5.8.93 npp=12.3.3.100 nvjpeg=12.3.5.92 "
        "nvjitlink=12.8.93 nvfatbin=12.8.90 nvtx=12.8.90 opencl=12.8.90 cupti=12.8.90 "
        "cccl=12.8.90 nvcc=12.8.93 nvml=12.8.90 profiler=12.8.90 sanitizer=12.8.93"
    ),
    "12.8.2": (
        "cudart=12.8.90 nvrtc=12.8.93 cublas=12.8.5.5 cufft=11.3.3.83 cufile=1.13.1.3 "
        "curand=10.3.9.90 cusolver=11.7.3.90 cusparse=12.5.8.93 npp=12.3.3.100 nvjpeg=12.3.5.92 "
        "nvjitlink=12.8.93 nvfatbin=12.8.90 nvtx=12.8.90 opencl=12.8.90 cupti=12.8.90 "
        "cccl=12.8.90 nvcc=12.8.93 nvml=12.8.90 profiler=12.8.90 sanitizer=12.8.93"
    ),
    "12.9.0": (
        "cudart=12.9.37 nvrtc=12.9.41 cublas=12.9.0.13 cufft=11.4.0.6 cufile=1.14.0.30 "
        "curand=10.3.10.19 cusolver=11.7.4.40 cusparse=12.5.9.5 npp=12.4.0.27 nvjpeg=12.4.0.16 "
        "nvjitlink=12.9.41 nvfatbin=12.9.19 nvtx=12.9.19 opencl=12.9.19 cupti=12.9.19 "
        "cccl=12.9.27 nvcc=12.9.41 nvml=12.9.40 profiler=12.9.19 sanitizer=12.9.27"
    ),
    "12.9.1": (
        "cudart=12.9.79 nvrtc=12.9.86 cublas=12.9.1.4 cufft=11.4.1.4 cufile=1.14.1.1 "
        "curand=10.3.10.19 cusolver=11.7.5.82 cusparse=12.5.10.65 npp=12.4.1.87 nvjpeg=12.4.0.76 "
        "nvjitlink=12.9.86 nvfatbin=12.9.82 nvtx=12.9.79 opencl=12.9.19 cupti=12.9.79 "
        "cccl=12.9.27 nvcc=12.9.86 nvml=12.9.79 profiler=12.9.79 sanitizer=12.9.79"
    ),
    "12.9.2": (
        "cudart=12.9.79 nvrtc=12.9.86 cublas=12.9.2.10 cufft=11.4.1.4 cufile=1.14.1.1 "
        "curand=10.3.10.19 cusolver=11.7.5.82 cusparse=12.5.10.65 npp=12.4.1.87 nvjpeg=12.4.0.76 "
        "nvjitlink=12.9.86 nvfatbin=12.9.82 nvtx=12.9.79 opencl=12.9.19 cupti=12.9.79 "
        "cccl=12.9.27 nvcc=12.9.86 nvml=12.9.79 profiler=12.9.79 sanitizer=12.9.79"
    ),
    "13.0.0": (
        "cudart=13.0.48 nvrtc=13.0.48 cublas=13.0.0.19 cufft=12.0.0.15 cufile=1.15.0.42 "
        "curand=10.4.0.35 cusolver=12.0.3.29 cusparse=12.6.2.49 npp=13.0.0.50 nvjpeg=13.0.0.40 "
        "nvjitlink=13.0.39 nvfatbin=13.0.39 nvtx=13.0.39 opencl=13.0.39 cupti=13.0.48 "
        "cccl=13.0.50 crt=13.0.48 nvcc=13.0.48 nvvm=13.0.48 nvml=13.0.39 profiler=13.0.39 "
        "sanitizer=13.0.48"
    ),
    "13.0.1": (
        "cudart=13.0.88 nvrtc=13.0.88 cublas=13.0.2.14 cufft=12.0.0.61 cufile=1.15.1.6 "
        "curand=10.4.0.35 cusolver=12.0.4.66 cusparse=12.6.3.3 npp=13.0.1.2 nvjpeg=13.0.1.86 "
        "nvjitlink=13.0.88 nvfatbin=13.0.85 nvtx=13.0.85 opencl=13.0.85 cupti=13.0.85 "
        "cccl=13.0.85 crt=13.0.88 nvcc=13.0.88 nvvm=13.0.88 nvml=13.0.87 profiler=13.0.85 "
        "sanitizer=13.0.85"
    ),
    "13.0.2": (
        "cudart=13.0.96 nvrtc=13.0.88 cublas=13.1.0.3 cufft=12.0.0.61 cufile=1.15.1.6 "
        "curand=10.4.0.35 cusolver=12.0.4.66 cusparse=12.6.3.3 npp=13.0.1.2 nvjpeg=13.0.1.86 "
        "nvjitlink=13.0.88 nvfatbin=13.0.85 nvtx=13.0.85 opencl=13.0.85 cupti=13.0.85 "
        "cccl=13.0.85 crt=13.0.88 nvcc=13.0.88 nvvm=13.0.88 nvml=13.0.87 profiler=13.0.85 "
        "sanitizer=13.0.85"
    ),
    "13.0.3": (
        "cudart=13.0.96 nvrtc=13.0.88 cublas=13.1.1.3 cufft=12.0.0.61 cufile=1.15.1.6 "
        "curand=10.4.0.35 cusolver=12.0.4.66 cusparse=12.6.3.3 npp=13.0.1.2 nvjpeg=13.0.1.86 "
        "nvjitlink=13.0.88 nvfatbin=13.0.85 nvtx=13.0.85 opencl=13.0.85 cupti=13.0.85 "
        "cccl=13.0.85 crt=13.0.88 nvcc=13.0.88 nvvm=13.0.88 nvml=13.0.87 profiler=13.0.85 "
        "sanitizer=13.0.85"
    ),
    "13.1.0": (
        "cudart=13.1.80 nvrtc=13.1.80 cublas=13.2.0.9 cufft=12.1.0.31 cufile=1.16.0.49 "
        "curand=10.4.1.34 cusolver=12.0.7.41 cusparse=12.7.2.19 npp=13.0.2.21 nvjpeg=13.0.2.28 "
        "nvjitlink=13.1.80 nvfatbin=13.1.80 nvtx=13.1.68 opencl=13.1.80 cupti=13.1.75 "
        "cccl=13.1.78 crt=13.1.80 nvcc=13.1.80 nvvm=13.1.80 nvml=13.1.68 profiler=13.1.80 "
        "sanitizer=13.1.75"
    ),
    "13.1.1": (
        "cudart=13.1.80 nvrtc=13.1.115 cublas=13.2.1.1 cufft=12.1.0.78 cufile=1.16.1.26 "
        "curand=10.4.1.81 cusolver=12.0.9.81 cusparse=12.7.3.1 npp=13.0.3.3 nvjpeg=13.0.3.75 "
        "nvjitlink=13.1.115 nvfatbin=13.1.115 nvtx=13.1.115 opencl=13.1.115 cupti=13.1.115 "
        "cccl=13.1.115 crt=13.1.115 nvcc=13.1.115 nvvm=13.1.115 nvml=13.1.115 profiler=13.1.115 "
        "sanitizer=13.1.118"
    ),
    "13.1.2": (
        "cudart=13.1.80 nvrtc=13.1.115 cublas=13.2.2.2 cufft=12.1.0.78 cufile=1.16.1.26 "
        "curand=10.4.1.81 cusolver=12.0.9.81 cusparse=12.7.3.1 npp=13.0.3.3 nvjpeg=13.0.3.75 "
        "nvjitlink=13.1.115 nvfatbin=13.1.115 nvtx=13.1.115 opencl=13.1.115 cupti=13.1.115 "
        "cccl=13.1.115 crt=13.1.115 nvcc=13.1.115 nvvm=13.1.115 nvml=13.1.115 profiler=13.1.115 "
        "sanitizer=13.1.118"
    ),
    "13.2.0": (
        "cudart=13.2.51 nvrtc=13.2.51 cublas=13.3.0.5 cufft=12.2.0.37 cufile=1.17.0.44 "
        "curand=10.4.2.51 cusolver=12.1.0.51 cusparse=12.7.9.17 npp=13.1.0.44 nvjpeg=13.0.4.44 "
        "nvjitlink=13.2.51 nvfatbin=13.2.51 nvtx=13.2.20 opencl=13.2.51 cupti=13.2.23 "
        "cccl=13.2.27 crt=13.2.51 nvcc=13.2.51 nvvm=13.2.51 nvml=13.2.51 profiler=13.2.20 "
        "sanitizer=13.2.23"
    ),
    "13.2.1": (
        "cudart=13.2.75 nvrtc=13.2.78 cublas=13.4.0.1 cufft=12.2.0.46 cufile=1.17.1.22 "
        "curand=10.4.2.55 cusolver=12.2.0.1 cusparse=12.7.10.1 npp=13.1.0.48 nvjpeg=13.1.0.48 "
        "nvjitlink=13.2.78 nvfatbin=13.2.78 nvtx=13.2.75 opencl=13.2.75 cupti=13.2.75 "
        "cccl=13.2.75 crt=13.2.78 nvcc=13.2.78 nvvm=13.2.78 nvml=13.2.82 profiler=13.2.75 "
        "sanitizer=13.2.76"
    ),
    "13.2.2": (
        "cudart=13.2.86 nvrtc=13.2.86 cublas=13.4.1.3 cufft=12.2.0.57 cufile=1.17.1.22 "
        "curand=10.4.2.66 cusolver=12.2.0.11 cusparse=12.7.10.12 npp=13.1.0.59 nvjpeg=13.1.0.59 "
        "nvjitlink=13.2.86 nvfatbin=13.2.86 nvtx=13.2.86 opencl=13.2.86 cupti=13.2.86 "
        "cccl=13.2.86 crt=13.2.86 nvcc=13.2.86 nvvm=13.2.86 nvml=13.2.86 profiler=13.2.86 "
        "sanitizer=13.2.87"
    ),
    "13.3.0": (
        "cudart=13.3.29 nvrtc=13.3.33 cublas=13.5.1.27 cufft=12.3.0.29 cufile=1.18.0.66 "
        "curand=10.4.3.29 cusolver=12.2.2.18 cusparse=12.8.1.7 npp=13.1.2.48 nvjpeg=13.2.0.21 "
        "nvjitlink=13.3.33 nvfatbin=13.3.29 nvtx=13.3.29 opencl=13.3.27 cupti=13.3.35 "
        "cccl=13.3.3.3.1 crt=13.3.33 nvcc=13.3.33 nvvm=13.3.33 nvml=13.3.29 profiler=13.3.27 "
        "sanitizer=13.3.27"
    ),
    "13.3.1": (
        "cudart=13.3.29 nvrtc=13.3.33 cublas=13.6.0.2 cufft=12.3.0.29 cufile=1.18.1.6 "
        "curand=10.4.3.29 cusolver=12.2.6.9 cusparse=12.8.2.51 npp=13.1.2.81 nvjpeg=13.2.1.68 "
        "nvjitlink=13.3.33 nvfatbin=13.3.29 nvtx=13.3.29 opencl=13.3.27 cupti=13.3.75 "
        "cccl=13.3.3.4.1 crt=13.3.73 nvcc=13.3.73 nvvm=13.3.73 nvml=13.3.29 profiler=13.3.27 "
        "sanitizer=13.3.75"
    ),
    "13.4.1": (
        "cudart=13.4.49 nvrtc=13.4.59 cublas=13.7.0.27 cufft=12.4.0.34 cufile=1.19.0.109 "
        "curand=10.4.4.49 cusolver=12.3.2.15 cusparse=12.8.6.49 npp=13.2.0.35 nvjpeg=13.2.2.35 "
        "nvjitlink=13.4.52 nvfatbin=13.4.49 nvtx=13.4.49 opencl=13.4.49 cupti=13.4.58 "
        "cccl=13.3.4.2.1 crt=13.4.59 nvcc=13.4.59 nvvm=13.4.59 nvml=13.4.61 profiler=13.4.49 "
        "sanitizer=13.4.57"
    ),
    "13.4.2": (
        "cudart=13.4.92 nvrtc=13.4.92 cublas=13.8.0.4 cufft=12.4.0.43 cufile=1.19.1.55 "
        "curand=10.4.4.72 cusolver=12.3.4.7 cusparse=12.8.6.72 npp=13.2.0.58 nvjpeg=13.2.3.58 "
        "nvjitlink=13.4.92 nvfatbin=13.4.92 nvtx=13.4.92 opencl=13.4.92 cupti=13.4.92 "
        "cccl=13.3.4.3.1 crt=13.4.92 nvcc=13.4.92 nvvm=13.4.92 nvml=13.4.92 profiler=13.4.92 "
        "sanitizer=13.4.92"
    ),
    "13.4.3": (
        "cudart=13.4.92 nvrtc=13.4.92 cublas=13.8.0.4 cufft=12.4.0.43 cufile=1.19.1.55 "
        "curand=10.4.4.72 cusolver=12.3.5.3 cusparse=12.8.6.72 npp=13.2.0.58 nvjpeg=13.2.3.58 "
        "nvjitlink=13.4.92 nvfatbin=13.4.92 nvtx=13.4.92 opencl=13.4.92 cupti=13.4.92 "
        "cccl=13.3.4.3.1 crt=13.4.92 nvcc=13.4.92 nvvm=13.4.92 nvml=13.4.92 profiler=13.4.92 "
        "sanitizer=13.4.92"
    ),
    "13.5.0": (
        "cudart=13.5.37 nvrtc=13.5.37 cublas=13.10.0.20 cufft=12.5.0.14 cufile=1.20.0.107 "
        "curand=10.4.5.25 cusolver=12.4.1.2 cusparse=12.9.4.2 npp=13.2.0.93 nvjpeg=13.3.2.43 "
        "nvjitlink=13.5.37 nvfatbin=13.5.37 nvtx=13.5.25 opencl=13.5.25 cupti=13.5.25 "
        "cccl=13.3.5.0.6 crt=13.5.37 nvcc=13.5.37 nvvm=13.5.37 nvml=13.5.37 profiler=13.5.25 "
        "sanitizer=13.5.25"
    ),
}

#: cuDNN by the major version of CUDA.
_CUDNN: Mapping[int, str] = {
    11: (
        "8.5.0 8.6.0 8.7.0 8.8.0 8.8.1 8.9.0 8.9.1 8.9.2 8.9.4 8.9.5 8.9.6 9.0.0 9.1.0 9.1.1 "
        "9.2.0 9.2.1 9.3.0 9.4.0 9.5.0 9.5.1 9.6.0 9.7.0 9.7.1 9.8.0 9.9.0 9.10.0 9.10.1 9.10.2"
    ),
    12: (
        "8.8.0 8.8.1 8.9.0 8.9.1 8.9.2 8.9.4 8.9.5 8.9.6 8.9.7 9.0.0 9.1.0 9.1.1 9.2.0 9.2.1 "
        "9.3.0 9.4.0 9.5.0 9.5.1 9.6.0 9.7.0 9.7.1 9.8.0 9.9.0 9.10.0 9.10.1 9.10.2 9.11.0 9.11.1 "
        "9.12.0 9.13.0 9.13.1 9.14.0 9.15.0 9.15.1 9.16.0 9.17.0 9.17.1 9.18.0 9.18.1 9.19.0 "
        "9.20.0 9.21.0 9.21.1 9.22.0 9.23.0 9.23.1 9.23.2 9.24.0 9.24.1 9.25.1 9.26.0 9.26.1 "
        "9.27.0 9.28.0"
    ),
    13: (
        "9.12.0 9.13.0 9.13.1 9.14.0 9.15.0 9.15.1 9.16.0 9.17.0 9.17.1 9.18.0 9.18.1 9.19.0 "
        "9.19.1 9.20.0 9.21.0 9.21.1 9.22.0 9.23.0 9.23.1 9.23.2 9.24.0 9.24.1 9.25.1 9.26.0 "
        "9.26.1 9.27.0 9.28.0 9.28.1"
    ),
}

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
    """A release of CUDA, or all updates of one: the range of versions of each component.

    ``name`` is what the user asked for, ``12.4`` or ``12.4.1``; ``components`` maps a component to
    its oldest and newest version among the releases that the name covers.
    """

    name: str
    components: Mapping[str, tuple[str, str]]

    @property
    def major(self) -> int:
        """12 of 12.4.1."""
        return parse_version(self.name)[0]

    @property
    def minor(self) -> tuple[int, int]:
        """(12, 4) of 12.4.1."""
        return parse_version(self.name)[:2]  # type: ignore[return-value]

    def package(self, component: str) -> str:
        """Return the name of a component's wheel."""
        return COMPONENTS[component] + self.suffix

    @property
    def suffix(self) -> str:
        """What NVIDIA's names of wheels end with: ``-cu12``."""
        return f"-cu{self.major}" if self.major < 13 else ""

    def requirement(self, component: str) -> str:
        """Return the requirement for a component: its exact version, or the range of updates."""
        oldest, newest = self.components[component]
        name = self.package(component)
        # The suffix .* also admits rebuilds (12.4.127.post1).
        if oldest == newest:
            return f"{name}=={oldest}.*"
        return f"{name}>={oldest},<={newest}"


def parse_version(text: str) -> tuple[int, ...]:
    """Return the numbers of a version such as ``12.4.1``; empty if it is anything else."""
    parts = text.split(".")
    if not all(part.isascii() and part.isdigit() and len(part) < 9 for part in parts):
        return ()
    return tuple(int(part) for part in parts)


@cache
def list_releases() -> tuple[str, ...]:
    """Return all releases that NVIDIA's wheels exist for, oldest first."""
    return tuple(sorted(_RELEASES, key=parse_version))


def find_release(version: str) -> CudaRelease | None:
    """Return the release ``version`` (``12.4.1``), or all updates of it (``12.4``, ``12``).

    ``12`` is the newest 12.x. Returns None for a version that was not released.
    """
    numbers = parse_version(version)
    covered = [name for name in list_releases() if parse_version(name)[: len(numbers)] == numbers]
    if not numbers or not covered:
        return None
    if len(numbers) == 1:
        minor = parse_version(covered[-1])[:2]
        covered = [name for name in covered if parse_version(name)[:2] == minor]
        version = f"{minor[0]}.{minor[1]}"
    rows = [_read_row(name) for name in covered]
    components = {
        component: (
            min((row[component] for row in rows if component in row), key=parse_version),
            max((row[component] for row in rows if component in row), key=parse_version),
        )
        for component in COMPONENTS
        if any(component in row for row in rows)
    }
    return CudaRelease(version, components)


def _read_row(name: str) -> dict[str, str]:
    pairs = (item.partition("=")[::2] for item in _RELEASES[name].split())
    return dict(pairs)


def list_cudnn_versions(major: int) -> tuple[str, ...]:
    """Return the versions of cuDNN for a major version of CUDA, oldest first."""
    return tuple(_CUDNN.get(major, "").split())


def find_cudnn(version: str, major: int) -> str:
    """Return the requirement for a cuDNN (``9``, ``8.9``, ``9.1.0``); empty if unknown."""
    numbers = parse_version(version)[:3]
    known = list_cudnn_versions(major)
    if not numbers or not any(parse_version(name)[: len(numbers)] == numbers for name in known):
        return ""
    return f"nvidia-cudnn-cu{major}=={version}.*"


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
