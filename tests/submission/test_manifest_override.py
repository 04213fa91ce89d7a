"""A cluster manifest run locally: without GPUs, with directories for its claims."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.jobs.local.client import check_gpus, check_volumes
from danlu.jobs.local.pod import requested_gpus
from danlu.jobs.types import ContainerImage, Submission
from danlu.submission.options import TrainOptions
from danlu.submission.plan import PlannedJob, format_documents, list_documents, plan_job
from danlu.submission.submission import build_submission
from danlu.training.document import read_manifest_file
from danlu.training.manifest import read_job
from danlu.training.registry import find_framework
from danlu.training.types import ReplicaType

WORKER = ReplicaType("Worker")
MANIFEST = """\
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: demo}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          runtimeClassName: nvidia
          nodeSelector: {accelerator: h100}
          tolerations: [{key: nvidia.com/gpu, operator: Exists}]
          initContainers:
          - name: fetch
            image: example/fetch:1
            command: [fetch]
            volumeMounts: [{name: data, mountPath: /data/}]
          containers:
          - name: beside
            image: example/beside:1
            command: [watch]
            env: [{name: RANK, value: mine}]
            volumeMounts: [{name: data, mountPath: /watched}]
          - name: pytorch
            image: example/trainer:1
            command: [python, train.py]
            resources:
              limits: {nvidia.com/gpu: 4, cpu: "2", nvidia.com/mig-1g.5gb: 1}
              requests: {nvidia.com/gpu: 4, memory: 1Gi}
            volumeMounts:
            - {name: data, mountPath: /data, subPath: train}
            - {name: shared, mountPath: /shared}
            - {name: scratch, mountPath: /scratch}
          volumes:
          - name: data
            persistentVolumeClaim: {claimName: datasets, readOnly: true}
          - name: shared
            persistentVolumeClaim: {claimName: results}
          - name: scratch
            emptyDir: {}
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    result = tmp_path / "project"
    for name in ("data", "results"):
        (result / name).mkdir(parents=True)
    (result / "job.yaml").write_text(MANIFEST)
    return result


def plan_manifest(project: Path, settings: Settings, **more: Any) -> PlannedJob:
    return plan_job(TrainOptions(directory=project, file="job.yaml", **more), settings=settings)


def pod(found: PlannedJob) -> dict[str, Any]:
    return dict(found.job.replicas[WORKER].template["spec"])


def container(found: PlannedJob, name: str = "pytorch") -> dict[str, Any]:
    spec = pod(found)
    both = [*spec["initContainers"], *spec["containers"]]
    return next(dict(container) for container in both if container["name"] == name)


def sources(found: PlannedJob) -> dict[str, Any]:
    """Return the source of each volume of the pod by name."""
    return {
        volume["name"]: next(value for key, value in volume.items() if key != "name")
        for volume in pod(found)["volumes"]
    }


def mounts(found: PlannedJob, name: str = "pytorch") -> dict[str, Any]:
    spec = sources(found)
    return {
        mount["mountPath"]: (spec[mount["name"]].get("path"), mount.get("readOnly", False))
        for mount in container(found, name).get("volumeMounts", ())
    }


def check_runs_here(found: PlannedJob, project: Path) -> None:
    """Run the checks of a local submission."""
    images = {container["image"]: ContainerImage("d") for container in pod(found)["containers"]}
    ordered = Submission(found.job, project, images=images)
    check_gpus(ordered)
    check_volumes(ordered)


# -- GPUs -----------------------------------------------------------------------------------------


def test_gpu_0_removes_only_the_gpus(project: Path, settings: Settings) -> None:
    manifest = plan_manifest(project, settings, gpu=0)
    assert container(manifest)["resources"] == {
        "limits": {"cpu": "2"},
        "requests": {"memory": "1Gi"},
    }
    assert requested_gpus(manifest.job.replicas[WORKER].template) == 0
    before = pod(plan_manifest(project, settings))
    kept = ("runtimeClassName", "nodeSelector", "tolerations", "volumes", "initContainers")
    assert {field: pod(manifest)[field] for field in kept} == {
        field: before[field] for field in kept
    }


def test_variable_replaces_the_manifests_in_the_main_container(
    project: Path, settings: Settings
) -> None:
    before = container(plan_manifest(project, settings))
    found = container(plan_manifest(project, settings, environment={"A": "$(B) $$", "C": "1"}))
    kept = [entry for entry in before.get("env", ()) if entry["name"] not in ("A", "C")]
    assert found["env"] == [
        {"name": "A", "value": "$$(B) $$$$"},
        {"name": "C", "value": "1"},
        *kept,
    ]


def test_environment_of_a_build_file_runs_the_main_container_in_the_project(
    project: Path, settings: Settings
) -> None:
    (project / "build.envd").write_text("def build():\n    base(os='debian12')\n")
    found = plan_manifest(project, settings, env="build.envd")
    assert container(found)["workingDir"] == "/workspace"
    assert "workingDir" not in container(found, "beside")
    assert "workingDir" not in container(plan_manifest(project, settings, image="x"))


def test_generated_name_is_completed_or_replaced(project: Path, settings: Settings) -> None:
    text = MANIFEST.replace("{name: demo}", "{generateName: run-}")
    (project / "job.yaml").write_text(text)
    assert re.fullmatch("run-[a-z0-9]{5}", plan_manifest(project, settings).job.name)
    assert plan_manifest(project, settings, name="mine").job.name == "mine"


def test_gpu_count_cannot_be_combined_with_a_manifest(project: Path, settings: Settings) -> None:
    with pytest.raises(UsageError, match="--gpu cannot be combined with a manifest") as caught:
        plan_manifest(project, settings, gpu=2)
    assert "--gpu 0" in caught.value.hint


def test_mpi_launcher_without_gpus_is_not_a_host(project: Path, settings: Settings) -> None:
    text = MANIFEST.replace("PyTorchJob", "MPIJob").replace("pytorch", "mpi")
    launcher = text[text.index("    Worker:") :].replace("Worker", "Launcher")
    (project / "job.yaml").write_text(text + launcher.replace("replicas: 2", "replicas: 1"))
    mpi = find_framework("mpi")
    job = plan_manifest(project, settings, gpu=0).job
    assert mpi.wrap_command(job, ReplicaType("Launcher"), ("x",)) == ("mpirun", "-np", "2", "x")
    job = plan_manifest(project, settings).job
    assert mpi.wrap_command(job, ReplicaType("Launcher"), ("x",)) == ("mpirun", "-np", "3", "x")


# -- claims ---------------------------------------------------------------------------------------


def test_claim_is_mounted_as_a_directory_in_every_container(
    project: Path, settings: Settings
) -> None:
    claims = {"datasets": "data", "results": str(project / "results")}
    manifest = plan_manifest(project, settings, claims=claims)
    data = str(project / "data")
    assert mounts(manifest) == {
        "/data": (data, True),
        "/shared": (str(project / "results"), False),
        "/scratch": (None, False),
    }
    assert container(manifest)["volumeMounts"][0]["subPath"] == "train"
    assert mounts(manifest, "beside") == {"/watched": (data, True)}
    assert mounts(manifest, "fetch") == {"/data/": (data, True)}


def test_cluster_manifest_runs_locally_without_gpus_and_claims(
    project: Path, settings: Settings
) -> None:
    claims = {"datasets": "data", "results": "results"}
    check_runs_here(plan_manifest(project, settings, gpu=0, claims=claims), project)


def test_unmapped_claim_suggests_the_claim_flag(project: Path, settings: Settings) -> None:
    manifest = plan_manifest(project, settings, gpu=0, claims={"datasets": "data"})
    with pytest.raises(UsageError, match="persistentVolumeClaim is not supported") as caught:
        check_runs_here(manifest, project)
    assert "--claim results=DIR" in caught.value.hint


@pytest.mark.parametrize(
    ("claims", "message", "hint"),
    [
        ({"dataset": "data"}, "no PersistentVolumeClaim dataset", "did you mean datasets?"),
        ({"other": "data"}, "no PersistentVolumeClaim other", "it has datasets, results"),
        ({"datasets": "gone"}, "gone is not a directory", "create it"),
        ({"datasets": "job.yaml"}, "job.yaml is not a directory", "create it"),
    ],
)
def test_invalid_claim_is_an_error(
    project: Path, settings: Settings, claims: dict[str, str], message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        plan_manifest(project, settings, claims=claims)
    assert hint in caught.value.hint


def test_claims_require_a_manifest_with_claims(project: Path, settings: Settings) -> None:
    text = MANIFEST.replace(
        "persistentVolumeClaim: {claimName: datasets, readOnly: true}", "emptyDir: {}"
    )
    text = text.replace("persistentVolumeClaim: {claimName: results}", "emptyDir: {}")
    (project / "job.yaml").write_text(text)
    with pytest.raises(UsageError, match="has no PersistentVolumeClaims"):
        plan_manifest(project, settings, claims={"datasets": "data"})
    (project / "train.py").write_text("import torch\n")
    order = TrainOptions(directory=project, script="train.py", claims={"datasets": "data"})
    with pytest.raises(UsageError, match="only valid with a manifest") as caught:
        plan_job(order, settings=settings)
    assert "--volume" in caught.value.hint


def test_claims_cannot_be_used_on_a_cluster(project: Path, settings: Settings) -> None:
    with pytest.raises(UsageError, match="--claim cannot be used with --on"):
        plan_manifest(project, settings, claims={"datasets": "data"}, on="kubernetes")


# -- volumes --------------------------------------------------------------------------------------


def test_volume_replaces_the_mount_at_its_path(project: Path, settings: Settings) -> None:
    manifest = plan_manifest(
        project, settings, volumes=("data:/data:ro", "results:/shared/", "data:/new")
    )
    data, results = str(project / "data"), str(project / "results")
    assert mounts(manifest) == {
        "/scratch": (None, False),
        "/data": (data, True),
        "/shared/": (results, False),
        "/new": (data, False),
    }
    assert mounts(manifest, "fetch") == {"/data": (data, True)}
    # The sidecar still needs its claim, mounted elsewhere; the claim at /shared is unused.
    assert container(manifest, "beside")["volumeMounts"] == [
        {"name": "data", "mountPath": "/watched"}
    ]
    assert set(sources(manifest)) == {"data", "scratch", "volume-0", "volume-1", "volume-2"}


def test_volumes_of_the_manifest_keep_their_names(project: Path, settings: Settings) -> None:
    (project / "job.yaml").write_text(MANIFEST.replace("scratch", "volume-0"))
    manifest = plan_manifest(project, settings, volumes=("data:/new",))
    assert mounts(manifest)["/volume-0"] == (None, False)
    assert mounts(manifest)["/new"] == (str(project / "data"), False)


def test_dry_run_shows_the_overrides(project: Path, settings: Settings) -> None:
    manifest = plan_manifest(
        project, settings, gpu=0, claims={"datasets": "data", "results": "data"}
    )
    document = read_manifest_file(format_documents(list_documents(manifest)), "again").job
    assert read_job(document, find_framework("pytorch")) == manifest.job


# -- sidecars ------------------------------------------------------------------------------------


def test_image_replaces_only_the_image_of_the_main_container(
    project: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def images_of(names: Any, **_: Any) -> dict[str, ContainerImage]:
        return {name: ContainerImage(f"digest of {name}", name) for name in names}

    monkeypatch.setattr("danlu.submission.submission.resolve_images", images_of)
    order = TrainOptions(directory=project, file="job.yaml", image="mine:1")
    job = plan_job(order, settings=settings)
    value = build_submission(job, order, settings=settings, progress=lambda event: None)
    assert {name: image.name for name, image in value.images.items()} == {
        "example/fetch:1": "example/fetch:1",
        "example/beside:1": "example/beside:1",
        "example/trainer:1": "mine:1",
    }


def test_image_replaces_the_main_image_on_a_cluster(project: Path, settings: Settings) -> None:
    order = TrainOptions(directory=project, file="job.yaml", image="mine:1", on="kubernetes")
    job = plan_job(order, settings=settings)
    value = build_submission(job, order, settings=settings, progress=lambda event: None)
    assert value.images == {"example/trainer:1": ContainerImage("", "mine:1")}
