"""``danlu train -f`` with the MPIJob of the MPI operator, and where it is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.submission.options import TrainOptions
from danlu.submission.plan import format_documents, list_documents, plan_job
from danlu.submission.submission import build_submission
from danlu.training.frameworks.mpi.base import LAUNCHER, WORKER
from danlu.training.registry import find_job_framework
from danlu.training.types import ReplicaId
from danlu.util.yaml_with_lines import read_yaml
from tests.training.frameworks.topology import FakeTopology

MANIFEST = """\
apiVersion: kubeflow.org/v2beta1
kind: MPIJob
metadata: {name: pi}
spec:
  mpiImplementation: MPICH
  runPolicy: {managedBy: MANAGER}
  mpiReplicaSpecs:
    Launcher:
      template: {spec: {containers: [{name: pi, image: "pi:1", command: [mpirun, -n, "2", pi]}]}}
    Worker:
      replicas: 2
      template: {spec: {containers: [{name: pi, image: "pi:1"}]}}
"""


def write_manifest(directory: Path, manager: str = "kubeflow.org/mpi-operator") -> None:
    (directory / "pi.yaml").write_text(MANIFEST.replace("MANAGER", manager))


def test_a_dry_run_keeps_the_version(tmp_path: Path, settings: Settings) -> None:
    write_manifest(tmp_path)
    planned = plan_job(TrainOptions(directory=tmp_path, file="pi.yaml"), settings=settings)
    ((written, _),) = read_yaml(format_documents(list_documents(planned)), "dry-run")
    assert written["apiVersion"] == "kubeflow.org/v2beta1"
    assert written["spec"]["mpiImplementation"] == "MPICH"
    assert written["spec"]["runPolicy"]["managedBy"] == "kubeflow.org/mpi-operator"
    assert written["spec"]["mpiReplicaSpecs"]["Launcher"]["restartPolicy"] == "OnFailure"


@pytest.mark.parametrize(
    ("on", "manager", "message"),
    [
        ("", "kueue.x-k8s.io/multikueue", "pi is managed by kueue.x-k8s.io/multikueue"),
        ("kubernetes", "", "MPIJob kubeflow.org/v2beta1 can only be run on this machine"),
    ],
)
def test_what_cannot_be_run_is_refused_by_name(
    tmp_path: Path, settings: Settings, on: str, manager: str, message: str
) -> None:
    write_manifest(tmp_path, manager or "kubeflow.org/mpi-operator")
    options = TrainOptions(directory=tmp_path, file="pi.yaml", on=on)
    planned = plan_job(options, settings=settings)
    with pytest.raises(UsageError, match=message):
        build_submission(planned, options, settings=settings, progress=lambda event: None)


PI = Path(__file__).parents[1] / "training" / "examples" / "v2beta1"


@pytest.mark.parametrize(
    ("example", "tag", "variables"),
    [
        ("pi", "openmpi", {"OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"}),
        ("pi-intel", "intel", {"I_MPI_HYDRA_HOST_FILE"}),
        ("pi-mpich", "mpich", {"HYDRA_HOST_FILE"}),
    ],
)
def test_examples_of_the_operator_are_planned_unmodified(
    settings: Settings, example: str, tag: str, variables: set[str]
) -> None:
    options = TrainOptions(directory=PI, file=f"{example}.yaml")
    job = plan_job(options, settings=settings).job
    framework = find_job_framework(job)
    topology = FakeTopology(job, framework)
    env = dict(framework.build_env(job, ReplicaId(LAUNCHER, 0), topology))
    assert {name for name in env if name.lower().endswith(("hostfile", "host_file"))} == variables
    end = " slots=1" if example == "pi" else ":1"
    assert framework.files(job, topology, ())["hostfile"].text.splitlines() == [
        f"pi-worker-{index}.pi.default.svc{end}" for index in range(2)
    ]
    commands = {}
    for type, spec in job.replicas.items():
        (container,) = spec.template["spec"]["containers"]
        assert container["image"] == f"mpioperator/mpi-pi:{tag}"
        given = [*(container.get("command") or ()), *container["args"]]
        commands[type] = list(framework.adapt_command(job, type, given))
    assert commands == {
        LAUNCHER: ["mpirun", "-n", "2", "/home/mpiuser/pi"],
        WORKER: ["sleep", "365d"],
    }
