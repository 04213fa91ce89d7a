"""API servers for tests: the fake, and a real kube-apiserver with etcd if it is installed."""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from ssl import create_default_context

import pytest

from danlu.kube.config import ClusterConfig, StaticCredentials
from tests.fakes.kubernetes import FakeKubernetes
from tests.ports import free_port

TOKEN = "conformance"
_BINARIES = Path(os.environ.get("KUBEBUILDER_ASSETS") or "/usr/local/kubebuilder/bin")
_READY_SECONDS = 60.0
_OF_NODES = (
    "serviceaccount-controller,root-ca-certificate-publisher-controller,"
    "endpoints-controller,endpointslice-controller,"
    "deployment-controller,replicaset-controller,"
    "persistentvolume-binder-controller,persistentvolumeclaim-protection-controller"
)
USERS = f"""\
{TOKEN},admin,admin-id,"system:masters"
reader,reader,reader-id
operator,operator,operator-id
"""


@dataclass(frozen=True)
class ApiServer:
    """A server under test; ``fake`` is None for a real one. ``collecting``: owners are followed."""

    access: ClusterConfig
    fake: FakeKubernetes | None = None
    collecting: bool = False
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    etcd: str = ""
    directory: Path = Path()

    def require_garbage_collector(self) -> None:
        """Skip the test if owned objects stay when their owner is deleted."""
        if not self.collecting:
            pytest.skip("kube-controller-manager not found")

    def end(self, name: str, signal: int) -> None:
        """End one of the processes of a real server so, and wait until it has."""
        self.processes[name].send_signal(signal)
        self.processes[name].wait(60)

    def begin(self, name: str) -> None:
        """Start one that has ended again, as it was; an API server is ready then."""
        arguments = self.processes[name].args
        assert isinstance(arguments, list)
        self.processes[name] = _start_process(arguments, self.directory)
        if name == "apiserver":
            ca = self.directory / "certificates" / "apiserver.crt"
            _wait_until_ready(self.access.server, ca, self.directory)

    def compact(self, version: int) -> None:
        """Forget all changes up to ``version``."""
        if self.fake is not None:
            self.fake.cluster.storage.compact()
            return
        # etcd's own interface in JSON (etcd, api/etcdserverpb/rpc.proto, Compact).
        body = json.dumps({"revision": str(version), "physical": True}).encode()
        request = urllib.request.Request(f"{self.etcd}/v3/kv/compaction", data=body)
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(request, timeout=60):
            pass

    def require_watch_progress(self) -> None:
        """Skip the test if the server's etcd cannot report how far its watches are.

        The API server then answers from a cache that may lag behind.
        """
        if self.fake is not None:
            return
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with opener.open(f"{self.etcd}/version", timeout=60) as response:
            version = json.load(response)["etcdserver"]
        if not reports_watch_progress(version):
            pytest.skip(f"etcd {version} cannot report the progress of watches (3.4.31 or 3.5.13)")


def reports_watch_progress(version: str) -> bool:
    """Return whether an API server relies on the progress that this version of etcd reports.

    See endpointSupportsRequestWatchProgress of k8s.io/apiserver (feature_support_checker.go).
    """
    parts = tuple(int(part) for part in version.partition("-")[0].split("."))
    return parts >= (3, 5, 13) or (3, 4, 31) <= parts < (3, 5)


def binaries() -> Path | None:
    """Return the directory of kube-apiserver and etcd, as envtest finds them."""
    here = all((_BINARIES / name).exists() for name in ("kube-apiserver", "etcd"))
    return _BINARIES if here else None


@contextmanager
def real_server(
    directory: Path,
    *,
    controllers: bool = True,
    accounts: bool = False,
    options: Sequence[str] = (),
) -> Iterator[ApiServer]:
    """Start etcd, kube-apiserver and, if installed, a controller manager.

    The test is skipped where their programs are not.
    With ``accounts`` pods have service accounts, Services their endpoints and Deployments their
    pods, as a cluster with a node needs it. ``options`` are further ones of the API server.
    """
    result = binaries()
    if result is None:
        pytest.skip("no kube-apiserver and etcd here (KUBEBUILDER_ASSETS)")
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        etcd = free_port()
        processes["etcd"] = _start_process(_etcd_command(result, directory, etcd), directory)
        port = free_port()
        arguments = _apiserver_command(result, directory, etcd, port)
        # A new node's taint would be removed by a controller that is not started here.
        without = "TaintNodesByCondition" if accounts else "ServiceAccount"
        arguments += [f"--disable-admission-plugins={without}", *options]
        processes["apiserver"] = _start_process(arguments, directory)
        url = f"https://127.0.0.1:{port}"
        ca = directory / "certificates" / "apiserver.crt"
        _wait_until_ready(url, ca, directory)
        access = ClusterConfig(
            server=url,
            credentials=StaticCredentials(token=TOKEN),
            ca=ca.read_bytes(),
            namespace="default",
        )
        collecting = controllers and (result / "kube-controller-manager").exists()
        if collecting:
            manager = _manager_command(result, directory, url, ca)
            if accounts:
                key = directory / "service-account.pem"
                manager += [f"--service-account-private-key-file={key}", f"--root-ca-file={ca}"]
                manager[2] += f",{_OF_NODES}"
            processes["manager"] = _start_process(manager, directory)
        yield ApiServer(access, None, collecting, processes, f"http://127.0.0.1:{etcd}", directory)
    finally:
        for process in reversed(processes.values()):
            _terminate_process(process)


def _start_process(arguments: list[str], directory: Path) -> subprocess.Popen[bytes]:
    log = directory / f"{Path(arguments[0]).name}.log"
    with log.open("ab") as out:
        return subprocess.Popen(arguments, stdout=out, stderr=out, stdin=subprocess.DEVNULL)


def _terminate_process(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _etcd_command(binaries: Path, directory: Path, port: int) -> list[str]:
    address = f"http://127.0.0.1:{port}"
    peer = f"http://127.0.0.1:{free_port()}"
    return [
        str(binaries / "etcd"),
        f"--data-dir={directory / 'etcd'}",
        f"--listen-client-urls={address}",
        f"--advertise-client-urls={address}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
    ]


def _apiserver_command(binaries: Path, directory: Path, etcd: int, port: int) -> list[str]:
    key = directory / "service-account.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(key), "2048"], check=True, capture_output=True)
    users = directory / "users.csv"
    users.write_text(USERS)
    return [
        str(binaries / "kube-apiserver"),
        f"--etcd-servers=http://127.0.0.1:{etcd}",
        f"--cert-dir={directory / 'certificates'}",
        f"--secure-port={port}",
        "--bind-address=127.0.0.1",
        "--advertise-address=127.0.0.1",
        "--service-cluster-ip-range=10.0.0.0/16",
        "--authorization-mode=RBAC",
        "--allow-privileged=true",
        f"--token-auth-file={users}",
        "--service-account-issuer=https://localhost",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
        "--watch-cache=true",
        "--kubelet-preferred-address-types=InternalIP",
    ]


def _manager_command(binaries: Path, directory: Path, url: str, ca: Path) -> list[str]:
    config = directory / "manager.yaml"
    config.write_text(
        f"""\
apiVersion: v1
kind: Config
current-context: one
clusters: [{{name: one, cluster: {{server: "{url}", certificate-authority: "{ca}"}}}}]
users: [{{name: one, user: {{token: {TOKEN}}}}}]
contexts: [{{name: one, context: {{cluster: one, user: one}}}}]
"""
    )
    return [
        str(binaries / "kube-controller-manager"),
        f"--kubeconfig={config}",
        "--controllers=garbagecollector,namespace,podgc",
        "--leader-elect=false",
        "--secure-port=0",
    ]


def _wait_until_ready(url: str, ca: Path, directory: Path) -> None:
    limit = time.monotonic() + _READY_SECONDS
    while time.monotonic() < limit:
        if ca.exists() and _is_ready(url, ca):
            return
        time.sleep(0.1)
    log = (directory / "kube-apiserver.log").read_text(errors="replace")
    raise AssertionError(f"no API server in {_READY_SECONDS:.0f} s:\n{log[-3000:]}")


def _is_ready(url: str, ca: Path) -> bool:
    request = urllib.request.Request(f"{url}/readyz", headers={"Authorization": f"Bearer {TOKEN}"})
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}),
        urllib.request.HTTPSHandler(context=create_default_context(cafile=str(ca))),
    )
    try:
        with opener.open(request, timeout=2):
            return True
    except (OSError, urllib.error.URLError):
        return False
