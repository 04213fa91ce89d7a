"""The programs of a cluster with one node: those that envtest finds, else the system's."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

from tests.kube.servers import binaries

__all__ = ["CNI", "find", "list_missing_programs", "node_path"]

_CLUSTER = ("kube-apiserver", "etcd", "kube-controller-manager", "kube-scheduler", "kubelet")
_SYSTEM = ("containerd", "containerd-shim-runc-v2", "ctr", "runc", "busybox", "unshare", "ip")
CNI = (Path("/opt/cni/bin"), Path("/usr/lib/cni"))
"""Where plug-ins of the container network may be."""


def node_path() -> str:
    """The PATH of a node's processes: the cluster's programs before the system's."""
    assets = binaries()
    own = f"{assets}:" if assets else ""
    return f"{own}{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


def find(program: str) -> str:
    """Return the path of a program, which :func:`list_missing_programs` has found."""
    result = shutil.which(program, path=node_path())
    assert result is not None, program
    return result


def plugin_directory() -> Path | None:
    """The directory with the plug-ins for networks that are needed."""
    expected = ("bridge", "host-local", "loopback")
    return next(
        (directory for directory in CNI if all((directory / name).exists() for name in expected)),
        None,
    )


def list_missing_programs() -> str:
    """Why there can be no cluster with a node here, or nothing."""
    if os.geteuid() != 0:
        return "a node needs root"
    for program in (*_CLUSTER, *_SYSTEM):
        if shutil.which(program, path=node_path()) is None:
            return f"no {program} here (KUBEBUILDER_ASSETS, PATH)"
    if plugin_directory() is None:
        return "no plug-ins for container networks here (containernetworking-plugins)"
    output = subprocess.check_output([find("containerd"), "--version"], text=True)
    result = re.search(r" v?(\d+)\.\d+", output)
    if result is None or int(result[1]) < 2:
        return f"the kubelet needs containerd 2, and here is {output.split()[2]}"
    return ""
