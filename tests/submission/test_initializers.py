"""Initializers of TrainJobs whose images are replaced: danlu's program, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.jobs.types import Submission
from danlu.replica_runtime import initializer
from danlu.submission.initializers import provide_initializers
from danlu.submission.options import TrainOptions
from danlu.submission.plan import format_documents, list_documents, plan_job
from danlu.submission.submission import build_submission
from danlu.training.pod_template import pod_spec
from danlu.training.registry import find_job_framework
from danlu.training.types import ReplicaType, RestartPolicy
from tests.jobs.local.support import lines_of, local_jobs

DATASET = ReplicaType("dataset-initializer")
JOB = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: loaded}
spec:
  runtimeRef: {name: torch-distributed}
  initializer:
    dataset:
      storageUri: URI
      env: [{name: IGNORE_PATTERNS, value: "*.bin"}]
      secretRef: {name: keys}
  trainer:
    numNodes: 2
    command: [sh, -c, 'ls /workspace/dataset; cat "$DATA"']
    env: [{name: DATA, value: /workspace/dataset/train.csv}]
---
apiVersion: v1
kind: Secret
metadata: {name: keys}
stringData: {ACCESS_TOKEN: hidden}
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data/train.csv").write_text("rows\n")
    (tmp_path / "data/x.bin").touch()
    return tmp_path / "data"


def submit(directory: Path, settings: Settings, uri: str, *changes: tuple[str, str]) -> Submission:
    text = JOB.replace("URI", uri)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (directory / "job.yaml").write_text(text)
    options = TrainOptions(directory=directory, file="job.yaml", host_python=True)
    planned = plan_job(options, settings=settings)
    return build_submission(planned, options, settings=settings, progress=lambda event: None)


def find_initializer(submission: Submission) -> dict[str, Any]:
    spec = submission.job.replicas[DATASET]
    assert spec.restart_policy is RestartPolicy.EXIT_CODE
    container: dict[str, Any] = pod_spec(spec.template)["containers"][0]
    return container


def test_a_process_runs_the_program_with_the_jobs_variables_only(
    tmp_path: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ENDPOINT", "http://of.the.shell")
    container = find_initializer(submit(tmp_path, settings, "s3://team/data"))
    command = ["python3", initializer.__file__, "dataset", "/workspace/dataset"]
    assert container["command"] == command
    env = {entry["name"]: entry["value"] for entry in container["env"]}
    unset = ("ENDPOINT", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "REGION", "ROLE_ARN")
    assert env == {
        **dict.fromkeys(unset, ""),
        "STORAGE_URI": "s3://team/data",
        "IGNORE_PATTERNS": "*.bin",
    }
    assert container["envFrom"] == [{"secretRef": {"name": "keys"}}]


def test_a_container_mounts_the_program_and_the_directory_of_the_host(
    data: Path, settings: Settings, tmp_path: Path
) -> None:
    given = submit(tmp_path, settings, data.as_uri())
    options = TrainOptions(directory=tmp_path, file="job.yaml", host_python=True)
    job = plan_job(options, settings=settings).job
    framework = find_job_framework(job)
    job = provide_initializers(job, framework, given.objects, contained=True)
    container = find_initializer(msgspec.structs.replace(given, job=job))
    program, source = "/run/danlu-initializer.py", "/run/danlu-source/data"
    assert container["command"] == ["python3", program, "dataset", "/workspace/dataset", source]
    mounts = {each["name"]: each for each in container["volumeMounts"]}
    volumes = {each["name"]: each for each in pod_spec(job.replicas[DATASET].template)["volumes"]}
    paths = {
        mounts[name]["mountPath"]: (volume["hostPath"]["path"], mounts[name]["readOnly"])
        for name, volume in volumes.items()
        if "hostPath" in volume
    }
    assert paths == {program: (initializer.__file__, True), source: (str(data), True)}


@pytest.mark.parametrize(
    ("uri", "change", "message"),
    [
        ("gs://a/b", None, "dataset-initializer: cannot load gs://a/b: unsupported scheme 'gs'"),
        ("file:///none/such", None, "dataset-initializer: /none/such does not exist"),
        ("''", None, "dataset-initializer: STORAGE_URI is not set"),
        ("hf://a/b", ("{name: keys}\nstringData", "{name: other}\nstringData"), "'keys' not found"),
    ],
)
def test_what_cannot_be_loaded_is_refused_before_anything_runs(
    tmp_path: Path, settings: Settings, uri: str, change: tuple[str, str] | None, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        submit(tmp_path, settings, uri, *([change] if change else ()))
    assert message in caught.value.message


RUNTIME = """
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {name: team}
spec:
  template:
    spec:
      replicatedJobs:
      - name: dataset-initializer
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: dataset-initializer}}
          spec:
            template:
              spec:
                containers:
                - {name: dataset-initializer, image: a, volumeMounts: [MOUNT]PROGRAM}
                volumes: [{name: initializer, emptyDir: {}}]
      - name: node
        template: {spec: {template: {spec: {containers: [{name: node, image: a, command: [x]}]}}}}
"""
TEAM = ("{name: torch-distributed}", "{name: team, kind: TrainingRuntime}")


def with_runtime(mount: str, program: str = "") -> tuple[str, str]:
    runtime = RUNTIME.replace("MOUNT", f"{{name: initializer, mountPath: {mount}}}")
    end = "stringData: {ACCESS_TOKEN: hidden}\n"
    return end, end + runtime.replace("PROGRAM", program)


@pytest.mark.parametrize("mount", ["/workspace", "/workspace/dataset/", "/"])
def test_a_volume_of_the_runtime_keeps_the_data(
    tmp_path: Path, settings: Settings, mount: str
) -> None:
    submission = submit(tmp_path, settings, "hf://a/b", TEAM, with_runtime(mount))
    assert find_initializer(submission)["command"][3] == "/workspace/dataset"


@pytest.mark.parametrize("mount", ["/data", "/workspace/model", "/work"])
def test_data_that_no_volume_would_keep_is_refused(
    tmp_path: Path, settings: Settings, mount: str
) -> None:
    with pytest.raises(UsageError, match="no volume at /workspace/dataset: its data would be lost"):
        submit(tmp_path, settings, "hf://a/b", TEAM, with_runtime(mount))


def test_a_program_of_the_runtime_stays(tmp_path: Path, settings: Settings) -> None:
    runtime = with_runtime("/data", ", command: [sh, -c, load]")
    job = submit(tmp_path, settings, "gs://a/b", TEAM, runtime).job
    spec = job.replicas[DATASET]
    assert pod_spec(spec.template)["containers"][0]["command"] == ["sh", "-c", "load"]
    assert spec.restart_policy is RestartPolicy.ON_FAILURE


def test_the_manifest_has_no_program_of_danlu(tmp_path: Path, settings: Settings) -> None:
    (tmp_path / "job.yaml").write_text(JOB.replace("URI", "hf://a/b"))
    options = TrainOptions(directory=tmp_path, file="job.yaml", host_python=True)
    written = format_documents(list_documents(plan_job(options, settings=settings)))
    assert "image: ghcr.io/kubeflow/trainer/dataset-initializer" in written
    assert "initializer.py" not in written


@pytest.mark.anyio
async def test_nodes_find_what_the_initializer_has_loaded(
    data: Path, settings: Settings, tmp_path: Path
) -> None:
    jobs = local_jobs(tmp_path / "home")
    await jobs.submit(submit(tmp_path, settings, data.as_uri()))
    lines = [line.data.decode() for line in await lines_of(jobs, "loaded")]
    uri = data.as_uri()
    assert lines[:2] == [f"loading the dataset {uri}", "the dataset is complete"]
    assert sorted(lines[2:]) == ["rows", "rows", "train.csv", "train.csv"]


@pytest.mark.anyio
async def test_nodes_are_not_started_if_the_data_cannot_be_loaded(
    settings: Settings, tmp_path: Path
) -> None:
    jobs = local_jobs(tmp_path / "home")
    change = ("env: [{name: IGNORE", "env: [{name: PYTHONPATH, value: PACKAGES}, {name: IGNORE")
    # A client that raises what a hub's does.
    package = tmp_path / "packages/huggingface_hub"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(
        "def login(token): raise OSError('Invalid user token.\\n\\nSee the guide')\n"
    )
    packages = ("PACKAGES", str(package.parent))
    await jobs.submit(submit(tmp_path, settings, "hf://team/data", change, packages))
    lines = [line.data.decode() for line in await lines_of(jobs, "loaded")]
    error = "cannot load hf://team/data: OSError: Invalid user token. See the guide"
    assert lines == ["loading the dataset hf://team/data", f"dataset-initializer: {error}"]
    view = await jobs.view("loaded")
    assert view.state == "Failed"
    restarts = {str(replica.id): (replica.state, replica.restarts) for replica in view.replicas}
    assert restarts == {
        "dataset-initializer-0": ("Failed", 0),
        "node-0": ("Pending", 0),
        "node-1": ("Pending", 0),
    }
