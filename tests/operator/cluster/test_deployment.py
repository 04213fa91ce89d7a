"""The operator as a cluster runs it: by its manifests, in an image that danlu built."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import danlu as api
from tests.conftest import ROOT, Danlu, program_in
from tests.operator.cluster.conftest import RunningCluster
from tests.operator.cluster.images import PAUSE, make_wheel, push_image

# Here and not for the module: one of these needs an environment of PyTorch.
real = [pytest.mark.real, pytest.mark.needs("kubectl", "root")]
EXAMPLES = ROOT / "examples"
SYSTEM = "danlu-system"
SPACE = "deployed"
ON = f"kubernetes:test/{SPACE}"
FLAGS = ("--reports-bind-address", ":8443")
REPORTING = """\
import danlu
import os
for step in range(1, 5):
    if os.environ["RANK"] == "0":
        danlu.report(percentage=25 * step, step=step)
    print("step", step, flush=True)
"""
Json = dict[str, Any]


@dataclass(frozen=True)
class KubectlProgram:
    """The real program, for one cluster."""

    kubeconfig: Path

    def __call__(
        self, *words: str, input: str = "", fails: bool = False, seconds: float = 180
    ) -> str:
        """Run kubectl and return its output, warnings included."""
        result = subprocess.run(
            ["kubectl", f"--kubeconfig={self.kubeconfig}", *words],
            input=input,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert (result.returncode != 0) == fails, result.stdout + result.stderr
        return result.stdout + result.stderr

    def items(self, kinds: str, *words: str) -> list[Json]:
        document: list[Json] = json.loads(self("get", kinds, *words, "-o", "json"))["items"]
        return document

    def identities(self) -> dict[str, tuple[str, int]]:
        """Return the uids of jobs' Pods and Services, and how often their containers restarted."""
        result = self.items("pods,services", "-n", SPACE)
        return {
            f"{obj['kind']} {obj['metadata']['name']}": (
                obj["metadata"]["uid"],
                _count_restarts(obj),
            )
            for obj in result
        }


def _count_restarts(pod: Json) -> int:
    return sum(
        container["restartCount"] for container in pod["status"].get("containerStatuses", ())
    )


@dataclass(frozen=True)
class OperatorInstallation:
    """The manifests, applied with kubectl."""

    kubectl: KubectlProgram
    danlu: Danlu

    def render_manifests(self, image: str, *flags: str) -> str:
        result = self.danlu("operator", "manifests", "--image", image, *FLAGS, *flags, cwd=ROOT)
        return result.stdout

    def apply(self, image: str, *flags: str) -> None:
        """Install this version, and wait until it is rolled out."""
        manifests = self.render_manifests(image, *flags)
        self.kubectl("apply", "--server-side", "-f", "-", input=manifests)
        self.wait_for_rollout()

    def wait_for_rollout(self) -> None:
        words = ("rollout", "status", "deployment/danlu-operator", "--timeout=120s")
        self.kubectl("-n", SYSTEM, *words)

    def remove(self, image: str) -> None:
        self.kubectl("delete", "--ignore-not-found", "-f", "-", input=self.render_manifests(image))

    def pods(self) -> list[Json]:
        return self.kubectl.items("pods", "-n", SYSTEM)

    def leader(self) -> str:
        """The name of the pod that leads, once one does."""

        def lease_holder() -> str:
            expected = ("lease", "danlu-operator", "-n", SYSTEM, "--ignore-not-found")
            return self.kubectl("get", *expected, "-o", "jsonpath={.spec.holderIdentity}")

        return until(lease_holder).rpartition("_")[0]


def until(found: Callable[[], str], *, seconds: float = 60) -> str:
    """Wait until the result is not empty, and return it."""
    limit = time.monotonic() + seconds
    while not (what := found()):
        assert time.monotonic() < limit, "it has not come to be"
        time.sleep(0.1)
    return what


@pytest.fixture(scope="module")
def kubectl(cluster: RunningCluster) -> KubectlProgram:
    return KubectlProgram(cluster.kubeconfig)


@pytest.fixture(scope="module")
def images(
    cluster: RunningCluster, real_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str]:
    """The image of ``examples/operator/image``, and a later version of it."""
    directory = tmp_path_factory.mktemp("operator") / "image"
    directory.mkdir()
    shutil.copy(EXAMPLES / "operator" / "image" / "build.envd", directory)
    make_wheel(directory, source=directory.with_name("source"))
    name, danlu = f"{cluster.registry}/team/danlu", program_in(real_home)
    first = push_image(directory, name, danlu)
    with (directory / "build.envd").open("a") as file:
        file.write('    runtime.environ(env={"VERSION": "later"})\n')
    return first, push_image(directory, name, danlu)


@pytest.fixture
def operator(
    kubectl: KubectlProgram, images: tuple[str, str], real_home: Path
) -> Iterator[OperatorInstallation]:
    """The operator, installed; a namespace for jobs."""
    installation = OperatorInstallation(kubectl, program_in(real_home))
    try:
        installation.apply(images[0])
        kubectl("create", "namespace", SPACE)
        yield installation
    finally:
        # With the definitions go all jobs.
        installation.remove(images[0])
        kubectl("delete", "namespace", SPACE, "--ignore-not-found")


def waiting(name: str, *, workers: int = 2) -> str:
    """A job whose replicas end on request."""
    container = {
        "name": "pytorch",
        "image": PAUSE,
        "imagePullPolicy": "Never",
        "command": ["/busybox", "sh", "-c", "until [ -f /over ]; do /busybox sleep 0.1; done"],
    }
    spec = {"containers": [container], "terminationGracePeriodSeconds": 0}
    replica = {"replicas": workers, "restartPolicy": "Never", "template": {"spec": spec}}
    return json.dumps(
        {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": name, "namespace": SPACE},
            "spec": {"pytorchReplicaSpecs": {"Worker": replica}},
        }
    )


def submit(kubectl: KubectlProgram, name: str) -> None:
    kubectl("apply", "-f", "-", input=waiting(name))
    pods = ("pod", "-l", f"training.kubeflow.org/job-name={name}", "--for=condition=Ready")
    until(lambda: kubectl("get", *pods[:3], "-n", SPACE, "-o", "name"))
    kubectl("wait", *pods, "-n", SPACE, "--timeout=60s")
    kubectl("wait", f"pytorchjob/{name}", "-n", SPACE, "--for=condition=Running", "--timeout=60s")


def end(kubectl: KubectlProgram, name: str) -> None:
    """Let the replicas of a job end, and see it succeed."""
    for index in range(2):
        kubectl("exec", "-n", SPACE, f"{name}-worker-{index}", "--", "/busybox", "touch", "/over")
    condition = ("--for=condition=Succeeded", "--timeout=60s")
    kubectl("wait", f"pytorchjob/{name}", "-n", SPACE, *condition)


def without_environment(test: Any) -> Any:
    """A test without an environment."""
    for mark in real:
        test = mark(test)
    return test


@without_environment
def test_the_operator_runs_unprivileged_with_probes(operator: OperatorInstallation) -> None:
    kubectl = operator.kubectl
    program = ("exec", "-n", SYSTEM, "deploy/danlu-operator", "--")
    assert kubectl(*program, "id", "-u").split() == ["65532"]
    assert kubectl(*program, "id", "-G").split() == ["65532"]
    assert "Read-only file system" in kubectl(*program, "touch", "/opt/file", fails=True)
    restricted = "pod-security.kubernetes.io/enforce=restricted"
    output = kubectl("label", "--dry-run=server", "namespace", SYSTEM, restricted)
    assert "Warning" not in output, output

    base = f"/api/v1/namespaces/{SYSTEM}"
    service = f"{base}/services/danlu-operator-metrics:metrics"
    metrics = kubectl("get", "--raw", f"{service}/proxy/metrics")
    assert 'workqueue_depth{name="pytorchjob-controller"' in metrics
    (pod,) = operator.pods()
    for path in ("healthz", "readyz"):
        where = f"{base}/pods/{pod['metadata']['name']}:8081/proxy/{path}"
        assert kubectl("get", "--raw", where) == "ok"
    assert _count_restarts(pod) == 0


@pytest.mark.training
@pytest.mark.needs("kubectl", "root")
def test_the_example_trains(
    cluster: RunningCluster, operator: OperatorInstallation, danlu: Danlu, tmp_path: Path
) -> None:
    directory = tmp_path / "pytorch"
    ignored = shutil.ignore_patterns("danlu.lock", "__pycache__", "log")
    shutil.copytree(EXAMPLES / "pytorch", directory, ignore=ignored)
    image = push_image(directory, f"{cluster.registry}/team/pytorch", danlu)
    text = (EXAMPLES / "operator" / "pytorchjob.yaml").read_text()
    # Three whole processors are more than a small machine has.
    text = text.replace("registry.example/team/pytorch:1", image).replace('cpu: "1"', "cpu: 500m")
    kubectl = operator.kubectl
    kubectl("apply", "-n", SPACE, "-f", "-", input=text)
    # A gigabyte is pulled first.
    result = ("--for=condition=Succeeded", "--timeout=400s")
    kubectl("wait", "-n", SPACE, "pytorchjob/pytorch-digits", *result, seconds=420)
    log = kubectl("logs", "-n", SPACE, "pytorch-digits-master-0")
    assert "result: 3 ranks agree" in log


@without_environment
def test_an_upgrade_does_not_change_a_running_job(
    operator: OperatorInstallation, images: tuple[str, str]
) -> None:
    kubectl = operator.kubectl
    submit(kubectl, "old")
    before = kubectl.identities()
    assert len(before) == 4
    (old,) = operator.pods()

    operator.apply(images[1])
    new = until(lambda: _find_other_pod(operator.pods(), old))
    assert new.endswith(images[1].rpartition("@")[2])
    until(lambda: "it leads" if operator.leader() != old["metadata"]["name"] else "")
    submit(kubectl, "new")
    after = kubectl.identities()
    assert {name: after[name] for name in before} == before
    assert len(after) == 8

    end(kubectl, "old")
    end(kubectl, "new")
    assert kubectl.identities() == after


def _find_other_pod(pods: list[Json], old: Json) -> str:
    """The image of the one pod that is left, when that is another than ``old``."""
    if len(pods) != 1 or pods[0]["metadata"]["uid"] == old["metadata"]["uid"]:
        return ""
    return str(pods[0]["spec"]["containers"][0]["image"])


@without_environment
def test_another_takes_over_when_the_leader_s_pod_is_deleted(
    operator: OperatorInstallation, images: tuple[str, str]
) -> None:
    kubectl = operator.kubectl
    operator.apply(images[0], "--replicas", "2")
    submit(kubectl, "before")
    before = kubectl.identities()
    leader = operator.leader()
    kubectl("delete", "pod", leader, "-n", SYSTEM)
    # The one that stood by, or the one that is made in the place of the deleted.
    until(lambda: "another leads" if operator.leader() != leader else "", seconds=15)
    submit(kubectl, "after")
    end(kubectl, "before")
    end(kubectl, "after")
    after = kubectl.identities()
    assert {name: after[name] for name in before} == before
    assert len(after) == 8
    operator.wait_for_rollout()
    assert [_count_restarts(pod) for pod in operator.pods()] == [0, 0]


@without_environment
def test_progress_and_values_arrive_through_the_service(
    operator: OperatorInstallation,
    images: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operator.apply(images[0], "--replicas", "2")
    monkeypatch.setenv("KUBECONFIG", str(operator.kubectl.kubeconfig))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(REPORTING)
    target = ("--on", ON)
    order = ("train.py", "--framework", "pytorch", "--worker", "2", "--name", "reports")
    result = operator.danlu("train", *order, *target, "--image", images[0], cwd=tmp_path)
    assert result.stdout.count("step 4") == 2, result.stdout + result.stderr
    assert "danlu.report" not in result.stdout, result.stdout
    (pod, _) = operator.kubectl.items("pods", "-n", SPACE)
    assert "https://danlu-operator-reports.danlu-system.svc:8443/" in json.dumps(pod["spec"])

    def read_completion() -> str:
        show = ("jobs", "show", "reports", *target, "--format", "json")
        progress = json.loads(operator.danlu(*show, cwd=tmp_path).stdout)["progress"]
        return "all" if progress["progressPercentage"] == 100 else ""

    # What is new is written once a second.
    until(read_completion, seconds=10)

    def work(size: int) -> tuple[str, str]:
        return os.environ["RANK"], "much" * size

    work.__module__ = "__main__"
    found = api.train(
        work,
        workers=2,
        # More than a termination message takes.
        args=(50_000,),
        framework="pytorch",
        image=images[0],
        every=True,
        on=ON,
        log=lambda line: None,
    )
    assert found == {f"worker-{rank}": (str(rank), "much" * 50_000) for rank in range(2)}


@without_environment
def test_uninstalled_without_its_crds_it_leaves_jobs_that_the_next_operator_adopts(
    operator: OperatorInstallation, images: tuple[str, str]
) -> None:
    kubectl = operator.kubectl
    submit(kubectl, "kept")
    before = kubectl.identities()
    kubectl("delete", "namespace", SYSTEM)
    roles = ("clusterrole,clusterrolebinding", "-l", "app.kubernetes.io/name=danlu-operator")
    kubectl("delete", *roles)
    assert kubectl.items(*roles) == []
    assert kubectl.identities() == before

    operator.apply(images[1])
    end(kubectl, "kept")
    assert kubectl.identities() == before


@without_environment
def test_uninstalled_as_documented_it_leaves_nothing(
    operator: OperatorInstallation, images: tuple[str, str]
) -> None:
    kubectl = operator.kubectl
    submit(kubectl, "gone")
    operator.remove(images[0])
    kinds = "namespaces,crd,clusterroles,clusterrolebindings"
    remaining = [obj["metadata"]["name"] for obj in kubectl.items(kinds)]
    assert [name for name in remaining if "danlu" in name or "kubeflow" in name] == []
    until(lambda: "" if kubectl.identities() else "nothing is left")
