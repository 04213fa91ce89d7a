"""From a script and flags, or a manifest, to what is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from danlu.commands.settings import Settings
from danlu.commands.train import TrainOrder, manifest_text, plan, submission
from danlu.commands.trainorder import Share
from danlu.commands.trainplace import present_python
from danlu.errors import UsageError
from danlu.jobs.types import Image
from danlu.training.manifest import read_documents, read_job, write_job
from danlu.training.registry import framework_of
from danlu.training.types import RestartPolicy
from danlu.util.config import Configuration
from danlu.util.paths import Paths


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(Paths.of({"DANLU_HOME": str(tmp_path / "home")}), Configuration())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    found = tmp_path / "project"
    found.mkdir()
    (found / "train.py").write_text("import torch\n")
    return found


def order(project: Path, **more: Any) -> TrainOrder:
    values = {} if "file" in more or "command" in more else {"script": "train.py"}
    return TrainOrder(directory=project, **{**values, **more})


def container(planned: Any, type: str = "Worker") -> Any:
    return planned.job.replicas[type].template["spec"]["containers"][0]


def test_a_script_runs_on_as_many_workers_as_asked(project: Path, settings: Settings) -> None:
    planned = plan(
        order(project, replicas={"worker": 3}, args=("--epochs", "3")), settings=settings
    )
    assert planned.job.kind == "PyTorchJob"
    assert {type: spec.replicas for type, spec in planned.job.replicas.items()} == {"Worker": 3}
    assert container(planned)["command"] == ["python", "train.py", "--epochs", "3"]
    assert planned.guessed == "framework pytorch, because train.py imports torch"


def test_names_are_fresh_and_fit_kubernetes(project: Path, settings: Settings) -> None:
    (project / "2_My Script!.py").write_text("import torch\n")
    names = {
        plan(order(project, script="2_My Script!.py"), settings=settings).job.name
        for _ in range(20)
    }
    assert len(names) == 20
    assert all(name.startswith("job-2-my-script-") for name in names)


def test_resources_and_policies_are_in_the_manifest(project: Path, settings: Settings) -> None:
    asked = order(
        project, cpu="2", memory="4GiB", gpu=1, backoff_limit=3, deadline=90.5, name="demo"
    )
    job = plan(asked, settings=settings).job
    limits = job.replicas[framework_of("pytorch").types[1]].template["spec"]["containers"][0]
    assert limits["resources"] == {"limits": {"cpu": "2", "memory": "4Gi", "nvidia.com/gpu": "1"}}
    assert job.run_policy.backoff_limit == 3
    assert job.run_policy.active_deadline_seconds == 91
    assert job.name == "demo"


def test_a_type_may_have_its_own_share(project: Path, settings: Settings) -> None:
    (project / "train.py").write_text("import tensorflow\n")
    shares = {"ps": Share(cpu="500m", memory="1GB", gpu=1), "WORKER": Share(memory="2Gi")}
    asked = order(project, replicas={"ps": 1, "worker": 2}, shares=shares, cpu="2", gpu=3)
    planned = plan(asked, settings=settings)
    limits = {type: container(planned, type)["resources"]["limits"] for type in ("PS", "Worker")}
    assert limits == {
        "PS": {"cpu": "500m", "memory": "1G", "nvidia.com/gpu": "1"},
        "Worker": {"cpu": "2", "memory": "2Gi", "nvidia.com/gpu": "3"},
    }


def test_a_share_of_a_type_that_is_not_there_is_refused(project: Path, settings: Settings) -> None:
    with pytest.raises(UsageError, match="no replicas of type ps"):
        plan(order(project, shares={"ps": Share(cpu="1")}), settings=settings)


@pytest.mark.parametrize("word", ["all", "ALL", "All"])
def test_a_clean_pod_policy_is_the_manifests(project: Path, settings: Settings, word: str) -> None:
    policy = plan(order(project, clean=word), settings=settings).job.run_policy
    assert policy.clean_pod_policy == "All"


def test_a_clean_pod_policy_that_is_none_is_refused(project: Path, settings: Settings) -> None:
    with pytest.raises(UsageError) as caught:
        plan(order(project, clean="sometimes"), settings=settings)
    assert "cleanPodPolicy" in "".join(caught.value.details)


def test_volumes_are_those_of_the_machine(project: Path, settings: Settings) -> None:
    asked = order(project, volumes=("data:/data:ro", "/srv/out:/out"), image="demo")
    planned = plan(asked, settings=settings)
    spec = planned.job.replicas[framework_of("pytorch").types[1]].template["spec"]
    assert [one["hostPath"]["path"] for one in spec["volumes"]] == [
        str(project / "data"),
        "/srv/out",
    ]
    assert [
        (one["mountPath"], one.get("readOnly")) for one in container(planned)["volumeMounts"]
    ] == [
        ("/data", True),
        ("/out", None),
    ]


@pytest.mark.parametrize("text", ["data", "data:out", "a:/b:rx", ":/b", "a:/b:ro:c"])
def test_what_is_no_volume_is_refused(project: Path, settings: Settings, text: str) -> None:
    with pytest.raises(UsageError, match="is not a volume"):
        plan(order(project, volumes=(text,)), settings=settings)


def test_what_travels_with_an_order_is_the_submissions(project: Path, settings: Settings) -> None:
    asked = order(
        project, files=project, value="all", tied=True, labels={"a": "b"}, host_python=True
    )
    planned = plan(asked, settings=settings)
    given = submission(planned, asked, settings=settings, progress=lambda event: None)
    assert (given.files, given.value, given.tied, given.labels) == (
        project,
        "all",
        True,
        {"a": "b"},
    )


def test_a_wrong_script_is_not_run_again_unless_asked(project: Path, settings: Settings) -> None:
    def policy(**more: Any) -> RestartPolicy:
        job = plan(order(project, **more), settings=settings).job
        return next(iter(job.replicas.values())).restart_policy

    assert policy() == RestartPolicy.NEVER
    assert policy(backoff_limit=2) == RestartPolicy.ON_FAILURE
    assert policy(restart="Always") == RestartPolicy.ALWAYS


def test_mpi_starts_the_script_by_mpirun_and_gives_the_launcher_no_gpu(
    project: Path, settings: Settings
) -> None:
    planned = plan(order(project, framework="mpi", replicas={"worker": 2}), settings=settings)
    assert container(planned, "Launcher")["command"][:3] == ["mpirun", "-np", "2"]
    assert container(planned, "Launcher")["command"][-2:] == ["python", "train.py"]
    assert "train.py" not in container(planned)["command"]
    with_gpu = plan(
        order(project, framework="mpi", replicas={"worker": 2}, gpu=1), settings=settings
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
def test_who_says_no_number_gets_one_that_computes(
    project: Path, settings: Settings, framework: str, expected: dict[str, int]
) -> None:
    job = plan(order(project, framework=framework), settings=settings).job
    assert {str(type): spec.replicas for type, spec in job.replicas.items()} == expected


@pytest.mark.parametrize("framework", ["pytorch", "tensorflow", "xgboost", "mpi", "jax", "paddle"])
def test_the_manifest_of_a_script_reads_back_as_the_same_job(
    project: Path, settings: Settings, framework: str
) -> None:
    planned = plan(
        order(project, framework=framework, cpu="1", replicas={"worker": 2}), settings=settings
    )
    documents = read_documents(manifest_text(planned, "yaml"), "job.yaml")
    assert read_job(documents.job, framework_of(framework)) == planned.job


def test_a_type_that_the_framework_lacks_names_those_it_has(
    project: Path, settings: Settings
) -> None:
    with pytest.raises(UsageError, match="pytorch has no replicas of type ps") as caught:
        plan(order(project, replicas={"ps": 1}), settings=settings)
    assert "--master, --worker" in caught.value.hint
    with pytest.raises(UsageError) as caught:
        plan(order(project, replicas={"wroker": 1}), settings=settings)
    assert caught.value.hint == "did you mean --worker?"


@pytest.mark.parametrize(
    ("more", "message", "hint"),
    [
        ({"script": "tran.py"}, "no script tran.py", "train.py"),
        ({"script": "job.yaml"}, "no script job.yaml", "-f job.yaml"),
        ({"framework": "pytroch"}, "pytroch", "pytorch"),
        ({"env": "build.envd", "image": "x"}, "--env and --image exclude", ""),
        ({"env": "missing.envd"}, "missing.envd", ""),
        ({"script": "notes.txt"}, "cannot be run", "chmod"),
        ({"script": ""}, "what is to be trained", "SCRIPT"),
    ],
)
def test_bad_orders_say_what_to_write(
    project: Path, settings: Settings, more: dict[str, Any], message: str, hint: str
) -> None:
    (project / "notes.txt").write_text("x")
    with pytest.raises(UsageError) as caught:
        plan(order(project, **{"framework": "pytorch", **more}), settings=settings)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_script_beside_a_build_file_runs_in_its_environment(
    project: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "build.envd").write_text("def build():\n    base(os='debian12')\n")
    asked = order(project.parent, script="project/train.py")
    planned = plan(asked, settings=settings)
    assert container(planned)["image"] == "project:latest"
    assert container(planned)["workingDir"] == "/workspace"
    assert container(planned)["command"] == ["python", "train.py"]
    monkeypatch.setattr(
        "danlu.commands.trainplace.built", lambda *_: Image("sha256:" + "a" * 64, "project:latest")
    )
    given = submission(planned, asked, settings=settings, progress=lambda event: None)
    assert given.directory == project
    assert given.images["project:latest"].digest == "sha256:" + "a" * 64


def test_host_python_overrides_the_environment(project: Path, settings: Settings) -> None:
    (project / "build.envd").write_text("def build():\n    base(os='debian12')\n")
    asked = order(project, host_python=True, python="/usr/bin/python3")
    given = submission(
        plan(asked, settings=settings), asked, settings=settings, progress=lambda event: None
    )
    assert (given.images, given.python, given.directory) == ({}, "/usr/bin/python3", project)
    assert given.environment["PYTHONUNBUFFERED"] == "1"


def test_a_script_outside_of_what_a_container_sees_is_refused(
    project: Path, settings: Settings
) -> None:
    elsewhere = project.parent / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "train.py").write_text("import torch\n")
    with pytest.raises(UsageError, match="outside of"):
        plan(order(project, script="../elsewhere/train.py", image="demo"), settings=settings)


def test_the_present_python_is_the_users(tmp_path: Path) -> None:
    for name in ("active/bin/python", "path/python3"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    path = {"PATH": str(tmp_path / "path")}
    assert present_python({**path, "VIRTUAL_ENV": str(tmp_path / "active")}) == str(
        tmp_path / "active/bin/python"
    )
    assert present_python({**path, "VIRTUAL_ENV": str(tmp_path / "gone")}) == str(
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


def test_documents_that_mean_nothing_here_are_named(project: Path, settings: Settings) -> None:
    service = "---\napiVersion: v1\nkind: Service\nmetadata:\n  name: board\n"
    (project / "job.yaml").write_text(MANIFEST + service)
    planned = plan(order(project, file="job.yaml"), settings=settings)
    assert planned.left_out == ("Service/board",)


def test_a_manifest_runs_in_the_images_it_names(
    project: Path, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "job.yaml").write_text(MANIFEST)
    asked = order(project, file="job.yaml")
    planned = plan(asked, settings=settings)
    assert (planned.job.name, planned.place) == ("demo", None)
    wanted: list[str] = []

    def images_of(names: list[str], **_: Any) -> dict[str, Image]:
        wanted.extend(names)
        return {name: Image("sha256:" + "b" * 64, name) for name in names}

    monkeypatch.setattr("danlu.commands.trainplace.images_of", images_of)
    given = submission(planned, asked, settings=settings, progress=lambda event: None)
    assert wanted == ["example/trainer:1"]
    assert set(given.images) == {"example/trainer:1"}
    assert set(given.objects) == {"ConfigMap/settings"}
    assert given.directory == project


def test_a_manifest_may_come_by_stdin_and_run_in_processes(
    project: Path, settings: Settings
) -> None:
    asked = order(project, file="-", text=MANIFEST, host_python=True, name="other")
    given = submission(
        plan(asked, settings=settings), asked, settings=settings, progress=lambda event: None
    )
    assert given.images == {}
    assert given.job.name == "other"


def test_a_manifests_dry_run_keeps_all_documents(project: Path, settings: Settings) -> None:
    planned = plan(order(project, file="-", text=MANIFEST), settings=settings)
    again = read_documents(manifest_text(planned, "yaml"), "again")
    assert set(again.objects) == {"ConfigMap/settings"}
    assert write_job(read_job(again.job, framework_of("pytorch"))) == write_job(planned.job)


def test_what_the_manifest_says_is_not_said_by_flags(project: Path, settings: Settings) -> None:
    asked = order(project, file="-", text=MANIFEST, cpu="1", replicas={"worker": 1}, args=("x",))
    with pytest.raises(UsageError, match="--cpu, --worker, arguments: the manifest says that"):
        plan(asked, settings=settings)


def test_an_image_that_is_not_there_is_said_offline(project: Path, settings: Settings) -> None:
    asked = order(project, file="-", text=MANIFEST, offline=True)
    planned = plan(asked, settings=settings)
    with pytest.raises(UsageError, match="there is no image example/trainer:1 here") as caught:
        submission(planned, asked, settings=settings, progress=lambda event: None)
    assert "--host-python" in caught.value.hint


def test_a_missing_manifest_is_said(project: Path, settings: Settings) -> None:
    with pytest.raises(UsageError, match=r"no manifest gone\.yaml"):
        plan(order(project, file="gone.yaml"), settings=settings)
