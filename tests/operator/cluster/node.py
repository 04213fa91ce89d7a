"""A node: containerd and a kubelet in namespaces of their own, with which all of it ends."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.operator.cluster.images import PAUSE, pause_archive
from tests.operator.cluster.programs import find, node_path, plugin_directory
from tests.ports import free_port

__all__ = [
    "NAME",
    "ClusterNode",
    "find_free_number",
    "node",
    "server_address",
    "service_range",
]

NAME = "node"

_SECONDS = 60.0
_NETWORKS = Path("/sys/class/net")


def find_free_number() -> int:
    """Return the number of a node without a bridge here: one that was killed leaves its own."""
    numbers = (64 + (os.getpid() + offset) % 128 for offset in range(128))
    return next(number for number in numbers if not (_NETWORKS / _bridge_name(number)).exists())


def _bridge_name(number: int) -> str:
    return f"dnode{number}"


def service_range(number: int) -> str:
    """The addresses of a cluster's Services: no other one's on this machine at the same time."""
    return f"10.{number}.128.0/20"


def server_address(number: int) -> str:
    """The address that pods are given for the API server: its Service's, the first of its range."""
    return f"10.{number}.128.1"


@dataclass(frozen=True)
class ClusterNode:
    """A running node; ``gateway`` is this machine as its pods see it, by ``bridge``.

    ``server`` is the address of the API server for its pods.
    """

    directory: Path
    server: str
    gateway: str
    bridge: str

    def add_address(self, address: str) -> None:
        """Let pods reach ``address`` too, while the node exists."""
        _run_ip("addr", "add", f"{address}/32", "dev", self.bridge)

    @property
    def log(self) -> str:
        """Return the last lines of the logs of containerd and the kubelet."""
        return (self.directory / "node.log").read_text(errors="replace")[-4000:]


@contextmanager
def node(directory: Path, kubeconfig: Path, *, number: int) -> Iterator[ClusterNode]:
    """A node whose pods get addresses of ``10.<number>.0.0/24``; it is ready when pods can run.

    Its processes are in a PID namespace: whatever still runs at the end is killed with it. Its
    mounts are in one of their own too, and so leave nothing here.
    """
    directory.mkdir(parents=True)
    gateway = f"10.{number}.0.1"
    bridge = _bridge_name(number)
    _write_config(directory, bridge, gateway)
    pause_archive(Path(find("busybox")), directory / "pause.tar")
    # A separate address: it would else be that of a port, and change with the pods, while others
    # still send to the old one.
    _run_ip("link", "add", bridge, "address", f"02:00:00:00:00:{number:02x}", "type", "bridge")
    try:
        _run_ip("addr", "add", f"{gateway}/24", "dev", bridge)
        _run_ip("addr", "add", f"{server_address(number)}/32", "dev", bridge)
        _run_ip("link", "set", bridge, "up")
        with _run_node(directory, kubeconfig, gateway):
            yield ClusterNode(directory, server_address(number), gateway, bridge)
    finally:
        _run_ip("link", "del", bridge)
        _remove_cgroups()
        shutil.rmtree(directory, ignore_errors=True)


def _run_ip(*words: str) -> None:
    subprocess.run([find("ip"), *words], check=True, capture_output=True)


@contextmanager
def _run_node(directory: Path, kubeconfig: Path, gateway: str) -> Iterator[None]:
    with (directory / "node.log").open("wb") as log:
        process = subprocess.Popen(
            [
                *(find("unshare"), "--pid", "--fork", "--kill-child=KILL", "--mount"),
                *("--mount-proc", "--propagation", "shared"),
                *("/bin/sh", "-euc", _node_script(directory, kubeconfig, gateway)),
            ],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={"PATH": node_path(), "HOME": str(directory)},
        )
    try:
        _wait_for(directory / "ready", process)
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()


def _wait_for(file: Path, process: subprocess.Popen[bytes]) -> None:
    limit = time.monotonic() + _SECONDS
    while not file.exists():
        if process.poll() is not None or time.monotonic() > limit:
            output = (file.parent / "node.log").read_text(errors="replace")
            raise AssertionError(f"no node:\n{output[-4000:]}")
        time.sleep(0.05)


def _node_script(directory: Path, kubeconfig: Path, gateway: str) -> str:
    return f"""\
containerd --config {directory}/containerd.toml &
for _ in $(seq 600); do
    ctr --address {directory}/s version >/dev/null 2>&1 && break
    sleep 0.05
done
ctr --address {directory}/s -n k8s.io images import --no-unpack {directory}/pause.tar
touch {directory}/ready
exec kubelet --config={directory}/kubelet.yaml --kubeconfig={kubeconfig} \\
    --root-dir={directory}/kubelet --cert-dir={directory}/pki --hostname-override={NAME} \\
    --node-ip={gateway}
"""


def _write_config(directory: Path, bridge: str, gateway: str) -> None:
    (directory / "containerd.toml").write_text(_containerd_config(directory))
    (directory / "kubelet.yaml").write_text(json.dumps(_kubelet_config(directory, gateway)))
    networks = directory / "cni"
    networks.mkdir()
    subnet = gateway.rpartition(".")[0] + ".0/24"
    address = {"type": "host-local", "dataDir": str(directory / "addresses")}
    address |= {"ranges": [[{"subnet": subnet, "gateway": gateway}]]}  # type: ignore[dict-item]
    address |= {"routes": [{"dst": "0.0.0.0/0"}]}  # type: ignore[dict-item]
    plugin = {"type": "bridge", "bridge": bridge, "isGateway": True, "ipam": address}
    conflist = {"cniVersion": "1.0.0", "name": "danlu", "plugins": [plugin]}
    (networks / "10-danlu.conflist").write_text(json.dumps(conflist))


def _containerd_config(directory: Path) -> str:
    # A container that this machine is itself may not raise an OOM score.
    return f"""\
version = 3
root = "{directory}/containerd"
state = "{directory}/state"

[grpc]
address = "{directory}/s"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{PAUSE}"

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true

[plugins."io.containerd.cri.v1.runtime".cni]
bin_dirs = ["{plugin_directory()}"]
conf_dir = "{directory}/cni"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
runtime_type = "io.containerd.runc.v2"

[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
BinaryName = "{find("runc")}"
"""


def _kubelet_config(directory: Path, gateway: str) -> dict[str, object]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{directory}/s",
        "port": free_port(),
        "readOnlyPort": 0,
        "healthzPort": 0,
        "authentication": {
            "anonymous": {"enabled": True},
            "webhook": {"enabled": False},
        },
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDomain": "cluster.local",
        "clusterDNS": [gateway],
        "resolvConf": "",
        # Version 1 of control groups is what some machines still have.
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupsPerQOS": False,
        "enforceNodeAllocatable": [],
        "localStorageCapacityIsolation": False,
        "evictionHard": {"memory.available": "1Mi", "nodefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
        "failSwapOn": False,
        "makeIPTablesUtilChains": False,
        "oomScoreAdj": 0,
        "podLogsDir": str(directory / "pod-logs"),
        "volumePluginDir": str(directory / "volume-plugins"),
        "syncFrequency": "10s",
        "fileCheckFrequency": "10s",
        "nodeStatusUpdateFrequency": "10s",
    }


def _remove_cgroups() -> None:
    """Those that killed pods have left, which are empty; others cannot be removed."""
    for pod in Path("/sys/fs/cgroup").glob("**/pod*-*-*-*-*"):
        for path in (*sorted(pod.glob("**/"), reverse=True), pod):
            with suppress(OSError):
                os.rmdir(path)
