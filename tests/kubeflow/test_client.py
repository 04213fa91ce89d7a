"""Scripts for Kubeflow's SDK, from PyPI and unmodified, with danlu's client."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.util.files import remove_tree
from danlu.util.paths import Paths
from tests.fakes.hub import FakeHub, serve_hub
from tests.fakes.wheels import make_wheel
from tests.jobs.containers import engine_rig
from tests.serving.servers import install_packages
from tests.test_repository import ROOT

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
BUNDLED_RUNTIMES = (
    *("torch-distributed", "jax-distributed", "xgboost-distributed"),
    *("deepspeed-distributed", "mlx-distributed", "plain-distributed"),
)
SCRIPTS = Path(__file__).with_name("scripts")

RUNTIME = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata:
  name: team
  labels: {trainer.kubeflow.org/framework: plain}
spec:
  mlPolicy: {numNodes: 1}
  template:
    spec:
      replicatedJobs:
      - name: node
        template:
          metadata: {labels: {trainer.kubeflow.org/trainjob-ancestor-step: trainer}}
          spec:
            backoffLimit: 0
            template:
              spec:
                containers:
                - {name: node, image: "example/train:1"}
"""


@pytest.fixture(scope="module")
def sdk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return install_packages(tmp_path_factory.mktemp("sdk"), "kubeflow==0.5.0")


class Account:
    """A user's project and danlu's home, and a Python with the SDK."""

    def __init__(self, directory: Path, packages: Path, *, home: Path | None = None) -> None:
        self.home = home or directory / "home"
        self.project = directory / "project"
        self.project.mkdir()
        self.variables = {
            "DANLU_HOME": str(self.home),
            "DANLU_UPKEEP": "off",
            "HOME": str(directory),
            "PATH": os.environ["PATH"],
            "PYTHONPATH": str(packages),
        }

    def run(self, name: str, *arguments: str, client: str = "TrainerClient()") -> list[str]:
        """Run a script with the import of danlu's client; return the lines of its output."""
        text = (SCRIPTS / name).read_text()
        assert text.count("\nfrom kubeflow.trainer import ") == 1
        changed = text.replace("\nfrom kubeflow.trainer import ", "\nfrom danlu.kubeflow import ")
        script = self.project / name
        script.write_text(changed.replace("TrainerClient()", client))
        result = subprocess.run(
            [sys.executable, name, *arguments],
            cwd=self.project, env=self.variables, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert result.returncode == 0, result.stdout + result.stderr
        assert script.read_text().replace(client, "TrainerClient()") == changed
        return result.stdout.splitlines()


@pytest.fixture
def account(tmp_path: Path, sdk: Path) -> Account:
    return Account(tmp_path, sdk)


def test_a_function_runs_on_two_nodes(account: Account) -> None:
    (account.project / "notes.py").write_text("TEXT = 'of the project'\n")
    lines = account.run("two_nodes.py")
    printed = [
        [f"node {rank} of 2: step {step}, {{x}}, of the project, a\tb \\ $HOME" for step in (0, 1)]
        for rank in (0, 1)
    ]
    assert lines == [
        str([*BUNDLED_RUNTIMES]),
        *printed[0],
        "node-0 Succeeded True cpu 1",
        "node-1 Succeeded True cpu 1",
        *printed[1],
        "TrainJobSucceeded",
        "[]",
    ]
    assert sorted(path.name for path in account.project.glob("*.py")) == [
        "notes.py",
        "two_nodes.py",
    ]


@pytest.mark.needs("ompi_info")
def test_a_function_is_started_by_mpirun(open_mpi: None, account: Account) -> None:
    assert account.run("mpi.py") == [
        "2 ('node-0', 'Succeeded') ('node-1', 'Succeeded')",
        "rank 0 of 2",
        "rank 1 of 2",
    ]


def test_jobs_that_fail_and_calls_that_raise(account: Account) -> None:
    (account.project / "runtime.yaml").write_text(RUNTIME)
    client = "TrainerClient(runtimes=['runtime.yaml'], host_python=True)"
    lines = account.run("endings.py", client=client)
    job = "TrainJob: default/long"
    assert lines == [
        "RuntimeError: TrainJob fails is Failed",
        "Failed ValueError: no data",
        "Failed",
        "Running",
        "started",
        "TimeoutError: Timeout waiting for TrainJob long to reach status: {'Complete'} status",
        f"RuntimeError: Failed to create {job} <- job long already exists and is still running",
        f"RuntimeError: Failed to get {job} <- job 'long' not found",
        f"RuntimeError: Failed to get {job} <- job 'long' not found",
        f"RuntimeError: Failed to delete {job} <- job 'long' not found",
        "RuntimeError: Failed to get Runtime: torchtune (checked both namespaced and cluster scope)"
        " <- Reason: ClusterTrainingRuntime torchtune not found; danlu has "
        + ", ".join(BUNDLED_RUNTIMES),
        "ValueError: BuiltinTrainer is not supported on this machine: danlu has no recipes of"
        " torchtune; pass the training as a CustomTrainer",
    ]


def test_trainjobs_of_danlu_train_are_listed(account: Account) -> None:
    job = """
    apiVersion: trainer.kubeflow.org/v1alpha1
    kind: TrainJob
    metadata: {name: hello}
    spec:
      runtimeRef: {name: team, kind: TrainingRuntime}
      trainer: {numNodes: 2, command: [echo, from a node]}
    ---
    """
    (account.project / "job.yaml").write_text(dedent(job) + RUNTIME)
    assert account.run("listed.py") == [
        "hello plain-distributed 2 Complete from a node",
        "job other is a PyTorchJob, not a TrainJob",
    ]


@pytest.mark.anyio
async def test_packages_of_a_function_and_its_progress(account: Account, tmp_path: Path) -> None:
    wheel = make_wheel(
        tmp_path,
        "fresh",
        files={"fresh.py": "TEXT = 'installed'\n\ndef main():\n    print('program')\n"},
        entry_points="[console_scripts]\nfresh = fresh:main\n",
    )
    (tmp_path / "index").mkdir()
    lines = account.run("packages.py", str(wheel), (tmp_path / "index").as_uri())
    assert lines[:4] == ["installed True", "program"] * 2
    assert lines[4].startswith("cannot install no-such-package: ")
    assert "packages_to_install cannot be combined with env" in "".join(lines)
    assert f"Python: {sys.version.splitlines()[0]}" in lines
    assert lines[-1] == "['fresh']"
    jobs = LocalJobs(Paths.of({"DANLU_HOME": str(account.home)}))
    progress = (await jobs.view("fresh")).progress
    assert progress is not None
    assert (progress.percentage, progress.metrics) == (70, {"loss": 0.25})
    job = (await jobs.submission("fresh")).job
    assert (job.labels, job.annotations) == ({"team": "vision"}, {"note": "first"})


def test_data_is_loaded_before_the_nodes_start(
    account: Account, tmp_path_factory: pytest.TempPathFactory
) -> None:
    hub = install_packages(tmp_path_factory.mktemp("hub"), "huggingface_hub==2.4.0")
    account.variables["PYTHONPATH"] += f":{hub}"
    files = {"README.md": b"r", "config.json": b"{}", "data/train.parquet": b"p", "x.bin": b"x"}
    with serve_hub(FakeHub({"datasets/team/data": files, "models/team/net": files})) as served:
        served.token = "hidden"
        account.variables["HF_ENDPOINT"] = served.url
        lines = account.run("initializers.py")
    dataset, model = "DATASET README.md config.json data/train.parquet", "MODEL config.json"
    assert lines[:7] == [
        "dataset-initializer Succeeded the dataset is complete",
        "model-initializer Succeeded the model is complete",
        f"node-0 Succeeded {dataset}",
        f"node-1 Succeeded {dataset}",
        dataset,
        model,
        "TrainJob missing is Failed",
    ]
    assert lines[7].startswith("dataset-initializer Failed model-initializer ")
    assert lines[7].endswith(" node-0 Pending node-1 Pending")
    assert "dataset-initializer: cannot load hf://team/none from " in "".join(lines[8:-1])
    assert lines[-1] == (
        "Failed to create TrainJob: default/unknown <- dataset-initializer:"
        " cannot load gs://team/data: unsupported scheme 'gs'"
    )


@pytest.mark.needs("root", "busybox")
def test_a_trainer_with_an_image_runs_in_containers(account: Account, tmp_path: Path) -> None:
    image = engine_rig.image(account.home)
    (tmp_path / "data").mkdir()
    (tmp_path / "data/file").write_text("of the host\n")
    try:
        lines = account.run("containers.py", image, str(tmp_path / "data"))
    finally:
        remove_tree(account.home / "store")
    assert lines == [f"node-{rank} Succeeded {rank} info of the host" for rank in (0, 1)]


def test_a_function_runs_in_an_environment(real_home: Path, sdk: Path, tmp_path: Path) -> None:
    account = Account(tmp_path, sdk, home=real_home)
    build = 'def build():\n    base(os="debian12")\n    install.python(version="3.11")\n'
    (account.project / "build.envd").write_text(build)
    (account.project / "notes.py").write_text("TEXT = 'of the project'\n")
    client = "TrainerClient(env='build.envd')"
    assert account.run("environment.py", client=client)[-1].startswith("/workspace /")
    for rank in (0, 1):
        assert (account.project / f"out-{rank}").read_text() == "of the project"


#: The SDK's tests of what reads the objects of a cluster, which danlu's backend inherits.
INHERITED = (
    *("list_runtimes", "get_runtime", "list_jobs", "get_job", "wait_for_job_status"),
    *("delete_job", "get_job_events"),
)


def test_the_sdks_own_tests_pass_with_the_local_backend(account: Account, sdk: Path) -> None:
    file = sdk / "kubeflow/trainer/backends/kubernetes/backend_test.py"
    tests = [f"{file}::test_{name}" for name in INHERITED]
    account.variables["PYTHONPATH"] += f":{ROOT}"
    options = ["-c", os.devnull, "--rootdir", str(account.project), "-p", "no:cacheprovider"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, "-p", f"{__package__}.sdk_tests_plugin", *tests],
        cwd=account.project, env=account.variables, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stdout + result.stderr
