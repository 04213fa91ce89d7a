"""``danlu train -f trainjob.yaml --on kubernetes``: what is sent, and what is refused before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from anyio.from_thread import start_blocking_portal

import danlu
from danlu.jobs.kubernetes.objects import job_resource
from danlu.jobs.kubernetes.runtimes import runtime_resource
from danlu.kube.client import Client
from danlu.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, Resource
from danlu.kube.types import Manifest
from danlu.training.registry import TRAIN_JOB
from danlu.util.yaml_with_lines import dump_yaml, read_yaml
from tests.fakes.kubernetes import ApiFault
from tests.jobs.kubernetes.support import JobNamespace, kubeconfig, open_site_in_threads

from .conftest import Cli

ON = ("--on", "kubernetes")
TRAIN_JOBS = job_resource(TRAIN_JOB).with_model(dict[str, Any])
STEP = "trainer.kubeflow.org/trainjob-ancestor-step"
RUNTIME = f"""
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {{name: team}}
spec:
  mlPolicy: {{numNodes: 2, torch: {{}}}}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {{labels: {{{STEP}: trainer}}}}
          spec:
            backoffLimit: 0
            template:
              spec:
                restartPolicy: Never
                containers:
                - {{name: node, image: "example/train:1"}}
"""
JOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: digits}
spec:
  runtimeRef: {kind: TrainingRuntime, name: team}
  trainer: {command: [python, -c, "import os; print('rank', os.environ['PET_NODE_RANK'])"]}
"""


@pytest.fixture
def site(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[JobNamespace]:
    Path("job.yaml").write_text(JOB)
    Path("both.yaml").write_text(f"{RUNTIME}---{JOB}")
    with open_site_in_threads(tmp_path / "pods") as site:
        monkeypatch.setenv("KUBECONFIG", str(kubeconfig(site, tmp_path / "kubeconfig")))
        yield site


def ask(site: JobNamespace, call: Callable[[Client], Any]) -> Any:
    """Return the answer of the site's server in another event loop."""

    async def run() -> Any:
        async with Client(site.client.config) as client:
            return await call(client)

    with start_blocking_portal() as portal:
        return portal.call(run)


def get(site: JobNamespace, resource: Resource[Manifest], name: str) -> Manifest:
    found: Manifest = ask(site, lambda client: client.get(resource, name, namespace="default"))
    return found


def create(site: JobNamespace, text: str, **changes: Any) -> None:
    ((document, _),) = read_yaml(text, "file")
    resource = runtime_resource(document["kind"])
    metadata = {**document["metadata"], "namespace": "default"}
    manifest = {**document, "metadata": metadata, **changes}
    ask(site, lambda client: client.create(resource, manifest))


def read_spec(text: str) -> Mapping[str, Any]:
    ((document, _),) = read_yaml(text, "file")
    spec: Mapping[str, Any] = document["spec"]
    return spec


def test_a_train_job_runs_on_the_cluster_and_its_lines_arrive(cli: Cli, site: JobNamespace) -> None:
    result = cli("train", "-f", "both.yaml", *ON)
    assert result.code == 0, result.err
    assert "TrainingRuntime team is created unless the cluster has the same" in result.err
    assert sorted(result.out.splitlines()) == ["node-0 │ rank 0", "node-1 │ rank 1"]
    assert "digits succeeded" in result.err
    stored = get(site, TRAIN_JOBS, "digits")
    assert "annotations" not in stored["metadata"]
    assert "labels" not in stored["metadata"]
    assert stored["spec"]["trainer"] == read_spec(JOB)["trainer"]
    added = {"suspend", "managedBy"}  # by the CRD's defaults
    assert set(stored["spec"]) == set(read_spec(JOB)) | added
    assert get(site, runtime_resource("TrainingRuntime"), "team")["spec"]
    # The second one finds the same runtime.
    assert cli("train", "-f", "both.yaml", "--name", "again", *ON).code == 0
    assert sorted(cli("jobs", "ls", "-q", *ON).out.splitlines()) == ["again", "digits"]


def test_a_train_job_is_attached_to_from_python(cli: Cli, site: JobNamespace) -> None:
    assert cli("train", "-f", "both.yaml", "--detach", *ON).out == "digits\n"
    lines: list[str] = []
    assert danlu.attach("digits", on="kubernetes", log=lines.append).state == "Succeeded"
    assert sorted(lines) == ["node-0 │ rank 0", "node-1 │ rank 1"]
    shown = cli("jobs", "show", "digits", *ON)
    assert "TrainJob (trainjob)" in shown.out


def test_a_failed_train_job_shows_the_replica_and_the_cause(cli: Cli, site: JobNamespace) -> None:
    text = Path("both.yaml").read_text().replace("import os;", "1/0;")
    # A pod that fails is then kept with its log, not restarted in place.
    text = text.replace(
        "      replicatedJobs:", "      failurePolicy: {maxRestarts: 1}\n      replicatedJobs:"
    )
    Path("both.yaml").write_text(text)
    result = cli("train", "-f", "both.yaml", *ON)
    assert result.code == 1
    assert "failed first: ZeroDivisionError: division by zero" in result.err


def test_a_dry_run_prints_what_would_be_submitted(cli: Cli, site: JobNamespace) -> None:
    flags = ("--name", "x", "--queue", "research", "-e", "EPOCHS=3", "--dry-run")
    result = cli("train", "-f", "both.yaml", *ON, *flags)
    runtime, job = (value for value, _ in read_yaml(result.out, "out"))
    assert dump_yaml(runtime) == dump_yaml(next(read_yaml(RUNTIME, "file"))[0])
    assert job["metadata"] == {"name": "x", "labels": {"kueue.x-k8s.io/queue-name": "research"}}
    assert job["spec"]["suspend"] is True
    assert job["spec"]["trainer"]["env"] == [{"name": "EPOCHS", "value": "3"}]
    assert cli("jobs", "ls", "-q", *ON).out == ""


def test_the_image_is_that_of_the_trainer(cli: Cli, site: JobNamespace) -> None:
    create(site, RUNTIME)
    result = cli("train", "-f", "job.yaml", "--image", "team/env:1", "--detach", *ON)
    assert (result.code, result.out) == (0, "digits\n"), result.err
    assert get(site, TRAIN_JOBS, "digits")["spec"]["trainer"]["image"] == "team/env:1"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--gpu", "0"), "--gpu 0 cannot be combined with a TrainJob on a cluster"),
        (("--grace", "5"), "--grace cannot be combined"),
        (("--finish-timeout", "5s"), "--finish-timeout cannot be combined"),
        (("--worker", "3"), "--worker cannot be combined with a manifest"),
        (("--dry-run", "--as", "v1"), "a TrainJob for a cluster is not converted"),
        (("--sweep", "lr=1,2"), "a sweep cannot change the commands of a TrainJob"),
        (("--queue", "lab"), "queue 'lab' not found"),
    ],
)
def test_options_that_do_not_apply_are_refused_by_name(
    cli: Cli, site: JobNamespace, flags: tuple[str, ...], message: str
) -> None:
    create(site, RUNTIME)
    result = cli("train", "-f", "job.yaml", *ON, *flags)
    assert result.code == 2
    assert message in result.err
    assert cli("jobs", "ls", "-q", *ON).out == ""


def test_a_missing_runtime_is_named_with_those_of_the_cluster(cli: Cli, site: JobNamespace) -> None:
    result = cli("train", "-f", "job.yaml", *ON)
    assert result.code == 2
    assert "TrainingRuntime 'team' not found" in result.err
    assert "namespace default has none; add its file with a further -f" in result.err
    create(site, RUNTIME.replace("name: team", "name: teams"))
    result = cli("train", "-f", "job.yaml", *ON)
    assert "did you mean teams?" in result.err.replace("'", "")
    assert "those in the cluster: teams" in result.err
    assert cli("jobs", "ls", "-q", *ON).out == ""


def test_a_missing_runtime_of_the_cluster_can_be_installed(cli: Cli, site: JobNamespace) -> None:
    Path("job.yaml").write_text(JOB.replace("kind: TrainingRuntime, ", ""))
    result = cli("train", "-f", "job.yaml", *ON)
    assert result.code == 2
    assert "ClusterTrainingRuntime 'team' not found" in result.err
    assert "`danlu operator runtimes` prints those of Kubeflow Trainer" in result.err


def test_a_runtime_unlike_that_of_the_cluster_is_refused(cli: Cli, site: JobNamespace) -> None:
    create(site, RUNTIME.replace("example/train:1", "example/train:2"))
    result = cli("train", "-f", "both.yaml", *ON)
    assert result.code == 2
    assert "TrainingRuntime team of the manifest differs from the one in the cluster" in result.err
    assert cli("jobs", "ls", "-q", *ON).out == ""


def test_a_runtime_of_the_whole_cluster_is_not_created(cli: Cli, site: JobNamespace) -> None:
    text = Path("both.yaml").read_text().replace("TrainingRuntime", "ClusterTrainingRuntime")
    Path("both.yaml").write_text(text)
    result = cli("train", "-f", "both.yaml", *ON)
    assert result.code == 2
    assert "ClusterTrainingRuntime team is not in the cluster" in result.err


def test_a_cluster_without_train_jobs_is_one_message(cli: Cli, site: JobNamespace) -> None:
    for plural in ("trainjobs", "trainingruntimes", "clustertrainingruntimes"):
        delete_definition = partial(
            Client.delete,
            resource=CUSTOM_RESOURCE_DEFINITIONS,
            name=f"{plural}.trainer.kubeflow.org",
        )
        ask(site, delete_definition)
    result = cli("train", "-f", "job.yaml", *ON)
    assert result.code == 3
    assert "has no CRDs of trainer.kubeflow.org" in result.err
    assert result.err.count("error:") == 1


def test_a_user_who_may_not_read_runtimes_can_submit(cli: Cli, site: JobNamespace) -> None:
    create(site, RUNTIME)
    site.fake.faults.append(ApiFault("get", "trainingruntimes", times=1, status=403))
    assert cli("train", "-f", "job.yaml", "--detach", *ON).out == "digits\n"


def test_a_name_that_another_kind_has_is_refused(cli: Cli, site: JobNamespace) -> None:
    create(site, RUNTIME)
    assert cli("train", "-f", "job.yaml", "--detach", *ON).code == 0
    result = cli("train", "-f", "job.yaml", "--detach", *ON)
    assert result.code == 2
    assert "job digits already exists" in result.err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("metadata: {name: digits}", "metadata: {}"), "a TrainJob has no metadata.name"),
        (("spec:", "other:"), "a TrainJob has no spec"),
        (("name: digits", "name: digits, namespace: b"), "the manifest's namespace is b"),
    ],
)
def test_a_manifest_that_cannot_be_sent_is_refused(
    cli: Cli, site: JobNamespace, change: tuple[str, str], message: str
) -> None:
    Path("job.yaml").write_text(JOB.replace(*change))
    result = cli("train", "-f", "job.yaml", *ON)
    assert result.code == 2
    assert message in result.err
