"""From a script and flags, or a manifest, to a submission."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.jobs.types import ContainerImage
from danlu.submission.options import ReplicaResources, TrainOptions
from danlu.submission.plan import find_active_python, format_documents, list_documents, plan_job
from danlu.submission.submission import build_submission
from danlu.training.document import read_manifest_file
from danlu.training.manifest import read_job, write_job
from danlu.training.registry import find_framework
from danlu.training.types import JobRestartPolicy, RestartPolicy


@pytest.fixture
def project(tmp_path: Path) -> Path:
    result = tmp_path / "project"
    result.mkdir()
    (result / "train.py").write_text("import torch\n")
    return result


def train_options(project: Path, **more: Any) -> TrainOptions:
    values = {} if "file" in more or "command" in more else {"script": "train.py"}
    return TrainOptions(directory=project, **{**values, **more})


def container(planned: Any, type: str = "Worker") -> Any:
    return planned.job.replicas[type].template["spec"]["containers"][0]


def test_script_runs_on_the_requested_number_of_workers(project: Path, settings: Settings) -> None:
    plan = plan_job(
        train_options(project, replicas={"worker": 3}, args=("--epochs", "3")), settings=settings
    )
    assert plan.job.kind == "PyTorchJob"
    assert {type: spec.replicas for type, spec in plan.job.replicas.items()} == {"Worker": 3}
    assert container(plan)["command"] == ["python", "train.py", "--epochs", "3"]
    assert plan.framework_reason == "framework pytorch, because train.py imports torch"


def test_job_names_are_unique_and_valid_in_kubernetes(project: Path, settings: Settings) -> None:
    (project / "2_My Script!.py").write_text("import torch\n")
    names = {
        plan_job(train_options(project, script="2_My Script!.py"), settings=settings).job.name
        for _ in range(20)
    }
    assert len(names) == 20
    assert all(name.startswith("job-2-my-script-") for name in names)


def test_resources_and_policies_are_in_the_manifest(project: Path, settings: Settings) -> None:
    options = train_options(
        project, cpu="2", memory="4GiB", gpu=1, backoff_limit=3, deadline=90.5, name="demo"
    )
    job = plan_job(options, settings=settings).job
    limits = job.replicas[find_framework("pytorch").replica_types[1]].template["spec"][
        "containers"
    ][0]
    assert limits["resources"] == {"limits": {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"}}
    assert job.run_policy.backoff_limit == 3
    assert job.run_policy.active_deadline_seconds == 91
    assert job.name == "demo"


def test_replica_type_may_have_its_own_resources(project: Path, settings: Settings) -> None:
    (project / "train.py").write_text("import tensorflow\n")
    shares = {
        "ps": ReplicaResources(cpu="500m", memory="1GB", gpu=1),
        "WORKER": ReplicaResources(memory="2Gi"),
    }
    options = train_options(
        project, replicas={"ps": 1, "worker": 2}, resources=shares, cpu="2", gpu=3
    )
    plan = plan_job(options, settings=settings)
    limits = {type: container(plan, type)["resources"]["limits"] for type in ("PS", "Worker")}
    assert limits == {
        "PS": {"cpu": "500m", "memory": "1G", "nvidia.com/gpu": "1"},
        "Worker": {"cpu": "2", "memory": "2Gi", "nvidia.com/gpu": "3"},
    }


def test_resources_for_an_unknown_replica_type_are_an_error(
    project: Path, settings: Settings
) -> None:
    with pytest.raises(UsageError, match="no replica type ps"):
        plan_job(
            train_options(project, resources={"ps": ReplicaResources(cpu="1")}), settings=settings
        )


@pytest.mark.parametrize("word", ["all", "ALL", "All"])
def test_clean_pod_policy_is_case_insensitive(project: Path, settings: Settings, word: str) -> None:
    policy = plan_job(
        train_options(project, clean_pod_policy=word), settings=settings
    ).job.run_policy
    assert policy.clean_pod_policy == "All"


def test_invalid_clean_pod_policy_is_an_error(project: Path, settings: Settings) -> None:
    with pytest.raises(UsageError) as caught:
        plan_job(train_options(project, clean_pod_policy="sometimes"), settings=settings)
    assert "cleanPodPolicy" in "".join(caught.value.details)


def test_volumes_are_host_paths(project: Path, settings: Settings) -> None:
    options = train_options(project, volumes=("data:/data:ro", "/srv/out:/out"), image="demo")
    plan = plan_job(options, settings=settings)
    spec = plan.job.replicas[find_framework("pytorch").replica_types[1]].template["spec"]
    assert [volume["hostPath"]["path"] for volume in spec["volumes"]] == [
        str(project / "data"),
        "/srv/out",
    ]
    assert [
        (mount["mountPath"], mount.get("readOnly")) for mount in container(plan)["volumeMounts"]
    ] == [
        ("/data", True),
        ("/out", None),
    ]


@pytest.mark.parametrize("text", ["data", "data:out", "a:/b:rx", ":/b", "a:/b:ro:c"])
def test_invalid_volume_is_an_error(project: Path, settings: Settings, text: str) -> None:
    with pytest.raises(UsageError, match="invalid volume"):
        plan_job(train_options(project, volumes=(text,)), settings=settings)


def test_submission_keeps_fields_of_the_options(project: Path, settings: Settings) -> None:
    options = train_options(
        project, files=project, value="all", tied=True, labels={"a": "b"}, host_python=True
    )
    plan = plan_job(options, settings=settings)
    value = build_submission(plan, options, settings=settings, progress=lambda event: None)
    assert (value.files, value.value, value.tied, value.labels) == (
        project,
        "all",
        True,
        {"a": "b"},
    )


def test_failed_script_is_not_restarted_by_default(project: Path, settings: Settings) -> None:
    def policy(**more: Any) -> RestartPolicy:
        job = plan_job(train_options(project, **more), settings=settings).job
        return next(iter(job.replicas.values())).restart_policy

    assert policy() == RestartPolicy.NEVER
    assert policy(backoff_limit=2) == RestartPolicy.ON_FAILURE
    assert policy(restart="Always") == RestartPolicy.ALWAYS


def test_restart_of_the_whole_job_is_limited_by_the_backoff_limit(
    project: Path, settings: Settings
) -> None:
    options = train_options(project, restart="Job", backoff_limit=4)
    job = plan_job(options, settings=settings).job
    assert job.job_restart_policy == JobRestartPolicy(4)
    assert {spec.restart_policy for spec in job.replicas.values()} == {RestartPolicy.ON_FAILURE}


def test_mpi_job_runs_mpirun_on_a_launcher_without_gpus(project: Path, settings: Settings) -> None:
    plan = plan_job(
        train_options(project, framework="mpi", replicas={"worker": 2}), settings=settings
    )
    assert container(plan, "Launcher")["command"][:3] == ["mpirun", "-np", "2"]
    assert container(plan, "Launcher")["command"][-2:] == ["python", "train.py"]
    assert "train.py" not in container(plan)["command"]
    with_gpu = plan_job(
        train_options(project, framework="mpi", replicas={"worker": 2}, gpu=1), settings=settings
    )
    assert "resources" not in container(with_gpu, "Launcher")
    assert container(with_gpu)["resources"] == {"limits": {"nvidia.com/gpu": "1"}}


@pytest.mark.parametrize(
    ("framework", "expected"),
    [
        ("pytorch", {"Worker": 1}),
        ("tensorflow", {"Worker": 1}),
        ("xgboost", {"Master": 1}),
        ("mpi", {"Launcher": 1, "Worker": 1}),
        ("jax", {"Worker": 1}),
    ],
)
def test_default_replicas_include_a_computing_replica(
    project: Path, settings: Settings, framework: str, expected: dict[str, int]
) -> None:
    job = plan_job(train_options(project, framework=framework), settings=settings).job
    assert {str(type): spec.replicas for type, spec in job.replicas.items()} == expected


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "xgboost", "mpi", "jax", "paddle"])
def test_manifest_of_a_script_round_trips(
    project: Path, settings: Settings, framework: str
) -> None:
    plan = plan_job(
        train_options(project, framework=framework, cpu="1", replicas={"worker": 2}),
        settings=settings,
    )
    documents = read_manifest_file(format_documents(list_documents(plan)), "job.yaml")
    assert read_job(documents.job, find_framework(framework)) == plan.job


def test_unknown_replica_type_lists_the_valid_types(project: Path, settings: Settings) -> None:
    with pytest.raises(UsageError, match="pytorch has no replica type ps") as caught:
        plan_job(train_options(project, replicas={"ps": 1}), settings=settings)
    assert "--master, --worker" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        plan_job(train_options(project, replicas={"wroker": 1}), settings=settings)
    assert caught.value.hint == "did you mean --worker?"


@pytest.mark.parametrize(
    ("more", "message", "hint"),
    [
        ({"script": "tran.py"}, "script tran.py not found", "train.py"),
        ({"script": "job.yaml"}, "script job.yaml not found", "-f job.yaml"),
        ({"framework": "pytroch"}, "pytroch", "pytorch"),
        ({"env": "build.envd", "image": "x"}, "--env and --image exclude", ""),
        ({"env": "missing.envd"}, "missing.envd", ""),
        ({"script": "notes.txt"}, "not executable", "chmod"),
        ({"script": ""}, "nothing to run", "SCRIPT"),
    ],
)
def test_invalid_options_have_a_hint(
    project: Path, settings: Settings, more: dict[str, Any], message: str, hint: str
) -> None:
    (project / "notes.txt").write_text("x")
    with pytest.raises(UsageError) as caught:
        plan_job(train_options(project, **{"framework": "pytorch", **more}), settings=settings)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_script_next_to_a_build_file_runs_in_its_environment(
    project: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "build.envd").write_text("def build():\n    base(os='debian12')\n")
    options = train_options(project.parent, script="project/train.py")
    plan = plan_job(options, settings=settings)
    assert container(plan)["image"] == "project:latest"
    assert container(plan)["workingDir"] == "/workspace"
    assert container(plan)["command"] == ["python", "train.py"]
    monkeypatch.setattr(
        "danlu.submission.submission.build_target_image",
        lambda *_: ContainerImage("sha256:" + "a" * 64, "project:latest"),
    )
    value = build_submission(plan, options, settings=settings, progress=lambda event: None)
    assert value.directory == project
    assert value.images["project:latest"].digest == "sha256:" + "a" * 64


def test_host_python_overrides_the_environment(project: Path, settings: Settings) -> None:
    (project / "build.envd").write_text("def build():\n    base(os='debian12')\n")
    options = train_options(project, host_python=True, python="/usr/bin/python3")
    value = build_submission(
        plan_job(options, settings=settings),
        options,
        settings=settings,
        progress=lambda event: None,
    )
    assert (value.images, value.python, value.directory) == ({}, "/usr/bin/python3", project)
    assert value.environment["PYTHONUNBUFFERED"] == "1"


def test_script_outside_the_mounted_directory_is_an_error(
    project: Path, settings: Settings
) -> None:
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.py").write_text("import torch\n")
    with pytest.raises(UsageError, match="outside"):
        plan_job(
            train_options(project, script="../elsewhere/train.py", image="demo"), settings=settings
        )


def test_active_python_is_the_virtual_environment_or_on_the_path(tmp_path: Path) -> None:
    for name in ("active/bin/python", "path/python3"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": str(tmp_path / "path")}
    assert find_active_python({**path, "VIRTUAL_ENV": str(tmp_path / "active")}) == str(
        tmp_path / "active/bin/python"
    )
    assert find_active_python({**path, "VIRTUAL_ENV": str(tmp_path / "gone")}) == str(
        tmp_path / "path/python3"
    )


# -- manifests ------------------------------------------------------------------------------------

MANIFEST = """\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings}
data: {a: "1"}
---
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: demo}
spec:
  pytorchReplicaSpecs:
    Worker:
      replicas: 2
      template:
        spec:
          containers:
          - name: pytorch
            image: example/trainer:1
            command: [python, train.py]
"""


def test_ignored_objects_of_a_manifest_are_listed(project: Path, settings: Settings) -> None:
    service = "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: board\n"
    (project / "job.yaml").write_text(MANIFEST + service)
    plan = plan_job(train_options(project, file="job.yaml"), settings=settings)
    assert plan.ignored_objects == ("Service/board",)


def test_manifest_runs_in_its_own_images(
    project: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "job.yaml").write_text(MANIFEST)
    options = train_options(project, file="job.yaml")
    plan = plan_job(options, settings=settings)
    assert (plan.job.name, plan.target) == ("demo", None)
    expected: list[str] = []

    def images_of(names: list[str], **_: Any) -> dict[str, ContainerImage]:
        expected.extend(names)
        return {name: ContainerImage("sha256:" + "b" * 64, name) for name in names}

    monkeypatch.setattr("danlu.submission.submission.resolve_images", images_of)
    value = build_submission(plan, options, settings=settings, progress=lambda event: None)
    assert expected == ["example/trainer:1"]
    assert set(value.images) == {"example/trainer:1"}
    assert set(value.objects) == {"ConfigMap/settings"}
    assert value.directory == project


def test_manifest_from_stdin_runs_in_processes(project: Path, settings: Settings) -> None:
    options = train_options(project, file="-", text=MANIFEST, host_python=True, name="other")
    value = build_submission(
        plan_job(options, settings=settings),
        options,
        settings=settings,
        progress=lambda event: None,
    )
    assert value.images == {}
    assert value.job.name == "other"


def test_dry_run_of_a_manifest_keeps_all_documents(project: Path, settings: Settings) -> None:
    plan = plan_job(train_options(project, file="-", text=MANIFEST), settings=settings)
    again = read_manifest_file(format_documents(list_documents(plan)), "again")
    assert set(again.objects) == {"ConfigMap/settings"}
    assert write_job(read_job(again.job, find_framework("pytorch"))) == write_job(plan.job)


@pytest.mark.parametrize("arguments", [[], ["--epochs", "3"]])
def test_a_container_without_a_command_is_refused_as_a_process(
    project: Path, settings: Settings, arguments: list[str]
) -> None:
    container = {"name": "pytorch", "image": "team/env:1", "args": arguments}
    worker = {"replicas": 1, "template": {"spec": {"containers": [container]}}}
    document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "job"},
        "spec": {"pytorchReplicaSpecs": {"Worker": worker}},
    }
    options = train_options(project, file="-", text=json.dumps(document), host_python=True)
    with pytest.raises(UsageError, match="container pytorch of Worker has no command"):
        build_submission(
            plan_job(options, settings=settings),
            options,
            settings=settings,
            progress=lambda event: None,
        )


def test_flags_that_conflict_with_a_manifest_are_an_error(
    project: Path, settings: Settings
) -> None:
    options = train_options(
        project, file="-", text=MANIFEST, cpu="1", replicas={"worker": 1}, args=("x",)
    )
    with pytest.raises(UsageError, match="--cpu, --worker, arguments cannot be combined"):
        plan_job(options, settings=settings)


def test_missing_image_is_an_error_offline(project: Path, settings: Settings) -> None:
    options = train_options(project, file="-", text=MANIFEST, offline=True)
    plan = plan_job(options, settings=settings)
    with pytest.raises(UsageError, match="image example/trainer:1 not found") as caught:
        build_submission(plan, options, settings=settings, progress=lambda event: None)
    assert "--host-python" in caught.value.hint


def test_missing_manifest_is_an_error(project: Path, settings: Settings) -> None:
    with pytest.raises(UsageError, match=r"manifest gone\.yaml not found"):
        plan_job(train_options(project, file="gone.yaml"), settings=settings)
