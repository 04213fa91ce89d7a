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
from tests.notebook.environments import uv
from tests.operator.cluster.conftest import Whole
from tests.operator.cluster.images import PAUSE, pushed

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
class Kubectl:
    """The real program, for one cluster."""

    kubeconfig: Path

    def __call__(
        self, *words: str, input: str = "", fails: bool = False, seconds: float = 180
    ) -> str:
        """What it wrote, its warnings too."""
        done = subprocess.run(
            ["kubectl", f"--kubeconfig={self.kubeconfig}", *words],
            input=input,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
        assert (done.returncode != 0) == fails, done.stdout + done.stderr
        return done.stdout + done.stderr

    def items(self, kinds: str, *words: str) -> list[Json]:
        found: list[Json] = json.loads(self("get", kinds, *words, "-o", "json"))["items"]
        return found

    def identities(self) -> dict[str, tuple[str, int]]:
        """Pods and Services of jobs: their uids, and how often their containers began anew."""
        found = self.items("pods,services", "-n", SPACE)
        return {
            f"{obj['kind']} {obj['metadata']['name']}": (obj["metadata"]["uid"], _restarts(obj))
            for obj in found
        }


def _restarts(pod: Json) -> int:
    return sum(
        container["restartCount"] for container in pod["status"].get("containerStatuses", ())
    )


@dataclass(frozen=True)
class Installation:
    """The manifests, as somebody pipes them into kubectl."""

    kubectl: Kubectl
    danlu: Danlu

    def written(self, image: str, *flags: str) -> str:
        made = self.danlu("operator", "manifests", "--image", image, *FLAGS, *flags, cwd=ROOT)
        return made.stdout

    def apply(self, image: str, *flags: str) -> None:
        """Install it, or another version; returns when it is there."""
        written = self.written(image, *flags)
        self.kubectl("apply", "--server-side", "-f", "-", input=written)
        self.rolled_out()

    def rolled_out(self) -> None:
        words = ("rollout", "status", "deployment/danlu-operator", "--timeout=120s")
        self.kubectl("-n", SYSTEM, *words)

    def remove(self, image: str) -> None:
        self.kubectl("delete", "--ignore-not-found", "-f", "-", input=self.written(image))

    def pods(self) -> list[Json]:
        return self.kubectl.items("pods", "-n", SYSTEM)

    def leader(self) -> str:
        """The name of the pod that leads, once one does."""

        def holder() -> str:
            wanted = ("lease", "danlu-operator", "-n", SYSTEM, "--ignore-not-found")
            return self.kubectl("get", *wanted, "-o", "jsonpath={.spec.holderIdentity}")

        return until(holder).rpartition("_")[0]


def until(found: Callable[[], str], *, seconds: float = 60) -> str:
    """What is found, once it is something."""
    limit = time.monotonic() + seconds
    while not (what := found()):
        assert time.monotonic() < limit, "it has not come to be"
        time.sleep(0.1)
    return what


@pytest.fixture(scope="module")
def kubectl(cluster: Whole) -> Kubectl:
    return Kubectl(cluster.kubeconfig)


@pytest.fixture(scope="module")
def images(
    cluster: Whole, real_home: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, str]:
    """That of ``examples/operator/image``, and a later version of it."""
    directory = tmp_path_factory.mktemp("operator") / "image"
    directory.mkdir()
    shutil.copy(EXAMPLES / "operator" / "image" / "build.envd", directory)
    make_wheel(directory, source=directory.with_name("source"))
    name, danlu = f"{cluster.registry}/team/danlu", program_in(real_home)
    first = pushed(directory, name, danlu)
    with (directory / "build.envd").open("a") as file:
        file.write('    runtime.environ(env={"VERSION": "later"})\n')
    return first, pushed(directory, name, danlu)


def make_wheel(directory: Path, *, source: Path) -> None:
    """Build a wheel from a copy of this source, because building leaves files behind."""
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    shutil.copytree(ROOT / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info"))
    uv("build", "--quiet", "--wheel", "--out-dir", str(directory), str(source))


@pytest.fixture
def operator(kubectl: Kubectl, images: tuple[str, str], real_home: Path) -> Iterator[Installation]:
    """The operator, installed; a namespace for jobs."""
    installation = Installation(kubectl, program_in(real_home))
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


def submit(kubectl: Kubectl, name: str) -> None:
    kubectl("apply", "-f", "-", input=waiting(name))
    pods = ("pod", "-l", f"training.kubeflow.org/job-name={name}", "--for=condition=Ready")
    until(lambda: kubectl("get", *pods[:3], "-n", SPACE, "-o", "name"))
    kubectl("wait", *pods, "-n", SPACE, "--timeout=60s")
    kubectl("wait", f"pytorchjob/{name}", "-n", SPACE, "--for=condition=Running", "--timeout=60s")


def end(kubectl: Kubectl, name: str) -> None:
    """Let the replicas of a job end, and see it succeed."""
    for index in range(2):
        kubectl("exec", "-n", SPACE, f"{name}-worker-{index}", "--", "/busybox", "touch", "/over")
    condition = ("--for=condition=Succeeded", "--timeout=60s")
    kubectl("wait", f"pytorchjob/{name}", "-n", SPACE, *condition)


def marked(test: Any) -> Any:
    """A test without an environment."""
    for mark in real:
        test = mark(test)
    return test


@marked
def test_the_operator_runs_unprivileged_with_probes(operator: Installation) -> None:
    kubectl = operator.kubectl
    program = ("exec", "-n", SYSTEM, "deploy/danlu-operator", "--")
    assert kubectl(*program, "id", "-u").split() == ["65532"]
    assert kubectl(*program, "id", "-G").split() == ["65532"]
    assert "Read-only file system" in kubectl(*program, "touch", "/opt/file", fails=True)
    restricted = "pod-security.kubernetes.io/enforce=restricted"
    said = kubectl("label", "--dry-run=server", "namespace", SYSTEM, restricted)
    assert "Warning" not in said, said

    base = f"/api/v1/namespaces/{SYSTEM}"
    service = f"{base}/services/danlu-operator-metrics:metrics"
    metrics = kubectl("get", "--raw", f"{service}/proxy/metrics")
    assert 'workqueue_depth{name="pytorchjob-controller"' in metrics
    (pod,) = operator.pods()
    for path in ("healthz", "readyz"):
        where = f"{base}/pods/{pod['metadata']['name']}:8081/proxy/{path}"
        assert kubectl("get", "--raw", where) == "ok"
    assert _restarts(pod) == 0


@pytest.mark.training
@pytest.mark.needs("kubectl", "root")
def test_the_example_trains(
    cluster: Whole, operator: Installation, danlu: Danlu, tmp_path: Path
) -> None:
    directory = tmp_path / "pytorch"
    ignored = shutil.ignore_patterns("danlu.lock", "__pycache__", "log")
    shutil.copytree(EXAMPLES / "pytorch", directory, ignore=ignored)
    image = pushed(directory, f"{cluster.registry}/team/pytorch", danlu)
    text = (EXAMPLES / "operator" / "pytorchjob.yaml").read_text()
    # Three whole processors are more than a small machine has.
    text = text.replace("registry.example/team/pytorch:1", image).replace('cpu: "1"', "cpu: 500m")
    kubectl = operator.kubectl
    kubectl("apply", "-n", SPACE, "-f", "-", input=text)
    # A gigabyte is pulled first.
    ended = ("--for=condition=Succeeded", "--timeout=400s")
    kubectl("wait", "-n", SPACE, "pytorchjob/pytorch-digits", *ended, seconds=420)
    log = kubectl("logs", "-n", SPACE, "pytorch-digits-master-0")
    assert "result: 3 ranks agree" in log


@marked
def test_an_upgrade_leaves_a_running_job_as_it_is(
    operator: Installation, images: tuple[str, str]
) -> None:
    kubectl = operator.kubectl
    submit(kubectl, "old")
    before = kubectl.identities()
    assert len(before) == 4
    (old,) = operator.pods()

    operator.apply(images[1])
    new = until(lambda: _only_other(operator.pods(), old))
    assert new.endswith(images[1].rpartition("@")[2])
    until(lambda: "it leads" if operator.leader() != old["metadata"]["name"] else "")
    submit(kubectl, "new")
    after = kubectl.identities()
    assert {name: after[name] for name in before} == before
    assert len(after) == 8

    end(kubectl, "old")
    end(kubectl, "new")
    assert kubectl.identities() == after


def _only_other(pods: list[Json], old: Json) -> str:
    """The image of the one pod that is left, when that is another than ``old``."""
    if len(pods) != 1 or pods[0]["metadata"]["uid"] == old["metadata"]["uid"]:
        return ""
    return str(pods[0]["spec"]["containers"][0]["image"])


@marked
def test_another_takes_over_when_the_leader_s_pod_is_deleted(
    operator: Installation, images: tuple[str, str]
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
    operator.rolled_out()
    assert [_restarts(pod) for pod in operator.pods()] == [0, 0]


@marked
def test_progress_and_values_come_back_through_the_service(
    operator: Installation,
    images: tuple[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    operator.apply(images[0], "--replicas", "2")
    monkeypatch.setenv("KUBECONFIG", str(operator.kubectl.kubeconfig))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(REPORTING)
    place = ("--on", ON)
    order = ("train.py", "--framework", "pytorch", "--worker", "2", "--name", "reports")
    done = operator.danlu("train", *order, *place, "--image", images[0], cwd=tmp_path)
    assert done.stdout.count("step 4") == 2, done.stdout + done.stderr
    assert "danlu.report" not in done.stdout, done.stdout
    (pod, _) = operator.kubectl.items("pods", "-n", SPACE)
    assert "https://danlu-operator-reports.danlu-system.svc:8443/" in json.dumps(pod["spec"])

    def told() -> str:
        show = ("jobs", "show", "reports", *place, "--format", "json")
        progress = json.loads(operator.danlu(*show, cwd=tmp_path).stdout)["progress"]
        return "all" if progress["progressPercentage"] == 100 else ""

    # What is new is written once a second.
    until(told, seconds=10)

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


@marked
def test_removed_without_its_definitions_it_leaves_jobs_that_the_next_one_takes_up(
    operator: Installation, images: tuple[str, str]
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


@marked
def test_removed_as_documented_it_leaves_nothing(
    operator: Installation, images: tuple[str, str]
) -> None:
    kubectl = operator.kubectl
    submit(kubectl, "gone")
    operator.remove(images[0])
    kinds = "namespaces,crd,clusterroles,clusterrolebindings"
    left = [obj["metadata"]["name"] for obj in kubectl.items(kinds)]
    assert [name for name in left if "danlu" in name or "kubeflow" in name] == []
    until(lambda: "" if kubectl.identities() else "nothing is left")
