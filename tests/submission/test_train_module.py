"""``danlu train -m package.module``: modules are found, sent and run as by ``python -m``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.jobs.kubernetes.manifests import prepare_job
from danlu.jobs.types import Submission
from danlu.submission.framework_detection import (
    DetectedFramework,
    detect_module_framework,
    find_module,
    relative_import_package,
)
from danlu.submission.options import TrainOptions
from danlu.submission.plan import PlannedJob, format_documents, list_documents, plan_job
from danlu.submission.submission import build_submission
from danlu.training.document import read_manifest_file
from danlu.training.manifest import read_job
from danlu.training.registry import find_framework
from danlu.training.rendering import render_pod
from danlu.training.topology import ServiceTopology
from danlu.training.types import ReplicaId, ReplicaType
from tests.jobs.kubernetes.pod_runner import run_pod

WORKER = ReplicaId(ReplicaType("Worker"), 0)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Create a project whose package uses two kinds of relative imports."""
    root = tmp_path / "project"
    write(root / "pkg/__init__.py")
    write(
        root / "pkg/train.py",
        "import sys\nfrom .nets import conv\nprint(conv.SIZE, sys.argv[1:])\n",
    )
    write(root / "pkg/nets/__init__.py", "from ..common import SIZE\n")
    write(root / "pkg/nets/conv.py", "from . import SIZE\n")
    write(
        root / "pkg/common.py", "try:\n    import torch\nexcept ImportError:\n    pass\nSIZE = 7\n"
    )
    write(root / "pkg/table.csv", "1,2\n")
    write(root / "other.py", "raise SystemExit\n")
    return root


def write(path: Path, text: str = "") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def plan_module(
    project: Path, settings: Settings, module: str = "pkg.train", **more: Any
) -> PlannedJob:
    return plan_job(TrainOptions(directory=project, module=module, **more), settings=settings)


def container(found: PlannedJob) -> Any:
    return found.job.replicas[WORKER.type].template["spec"]["containers"][0]


# -- where it is ----------------------------------------------------------------------------------


def test_module_is_found_as_by_python(project: Path) -> None:
    write(project / "tool/__init__.py")
    write(project / "tool/__main__.py")
    write(project / "bare/deep.py")
    assert find_module("pkg.train", project) == project / "pkg/train.py"
    assert find_module("other", project) == project / "other.py"
    assert find_module("tool", project) == project / "tool/__main__.py"
    assert find_module("bare.deep", project) == project / "bare/deep.py"
    assert find_module("torch.distributed.run", project) is None


def test_relative_imports_resolve_from_the_package(project: Path) -> None:
    assert relative_import_package("pkg.train", project / "pkg/train.py") == "pkg"
    assert relative_import_package("pkg", project / "pkg/__main__.py") == "pkg"
    assert relative_import_package("other", project / "other.py") == ""


@pytest.mark.parametrize(
    ("name", "message", "hint"),
    [
        ("pkg.trian", "module pkg.trian not found", "did you mean pkg.train?"),
        ("pkg.nets.cnov", "module pkg.nets.cnov not found", "did you mean pkg.nets.conv?"),
        ("pkg", "it has no module __main__", "pkg/__main__.py"),
        ("pkg/train.py", "invalid module name", "`python -m`: pkg.train"),
        ("other.py", "invalid module name", "`python -m`: other"),
        ("..", "invalid module name", "`python -m`: package.module"),
        ("pkg.", "invalid module name", "`python -m`: pkg"),
        ("-c", "invalid module name", ""),
    ],
)
def test_invalid_module_is_an_error(
    project: Path, settings: Settings, name: str, message: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        plan_module(project, settings, name, framework="pytorch")
    assert hint in caught.value.hint


# -- which framework ------------------------------------------------------------------------------


def test_framework_is_detected_through_relative_imports(project: Path) -> None:
    assert detect_module_framework("pkg.train", project) == DetectedFramework(
        "pytorch", "torch", "pkg/common.py"
    )


def test_module_of_a_framework_selects_that_framework(project: Path) -> None:
    module_framework = detect_module_framework("torch.distributed.run", project)
    assert module_framework.framework == "pytorch"
    with pytest.raises(UsageError, match="not in") as caught:
        detect_module_framework("elsewhere.train", project)
    assert "--framework" in caught.value.hint


# -- the job --------------------------------------------------------------------------------------


def test_module_job_runs_python_m_and_is_named_after_the_module(
    project: Path, settings: Settings
) -> None:
    module = plan_module(project, settings, args=("--lr", "0.1"))
    assert container(module)["command"] == ["python", "-m", "pkg.train", "--lr", "0.1"]
    assert module.job.name.startswith("train-")
    assert module.framework_reason == "framework pytorch, because pkg/common.py imports torch"
    document = read_manifest_file(format_documents(list_documents(module)), "out").job
    assert read_job(document, find_framework("pytorch")) == module.job


def test_package_job_is_named_after_the_package(project: Path, settings: Settings) -> None:
    write(project / "pkg/__main__.py", "import torch\n")
    assert plan_module(project, settings, "pkg").job.name.startswith("pkg-")
    assert plan_module(project, settings, "pkg.__main__").job.name.startswith("pkg-")


def test_module_runs_in_the_working_directory_of_the_container(
    project: Path, settings: Settings
) -> None:
    (project / "build.envd").write_text("def build():\n    base(os='debian12')\n")
    module = plan_module(project, settings)
    assert module.target is not None
    assert module.target.in_container
    assert container(module)["workingDir"] == "/workspace"
    env = str(project / "build.envd")
    below = plan_module(project / "pkg", settings, "common", env=env)
    assert container(below)["workingDir"] == "/workspace/pkg"
    elsewhere = project.parent / "elsewhere"
    write(elsewhere / "t.py", "import torch\n")
    with pytest.raises(UsageError, match="outside"):
        plan_module(elsewhere, settings, "t", env=env)


def test_mpirun_and_paddle_launcher_start_modules() -> None:
    words = ("python", "-m", "pkg.train", "--lr", "1")
    pod = {"template": {"spec": {"containers": [{"name": "mpi", "image": "i"}]}}}
    mpi = find_framework("mpi")
    document = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "MPIJob",
        "metadata": {"name": "job"},
        "spec": {"mpiReplicaSpecs": {"Launcher": pod, "Worker": {**pod, "replicas": 2}}},
    }
    job = read_job(document, mpi)
    assert mpi.wrap_command(job, ReplicaType("Launcher"), words) == ("mpirun", "-np", "2", *words)
    launched = find_framework("paddle").wrap_command(job, WORKER.type, words)
    assert launched == ("python", "-m", "paddle.distributed.launch", *words)


# -- on a cluster ---------------------------------------------------------------------------------


def prepare_submission(project: Path, settings: Settings, module: str, **more: Any) -> Submission:
    order = TrainOptions(
        directory=project, module=module, image="i", on="kubernetes", framework="pytorch", **more
    )
    job = plan_job(order, settings=settings)
    return build_submission(job, order, settings=settings, progress=lambda event: None)


def test_module_is_sent_with_its_package_and_imports(
    project: Path, settings: Settings, tmp_path: Path
) -> None:
    submission = prepare_submission(project, settings, "pkg.train", args=("a b",))
    assert set(submission.code) == {
        "pkg/__init__.py",
        "pkg/common.py",
        "pkg/nets/__init__.py",
        "pkg/nets/conv.py",
        "pkg/table.csv",
        "pkg/train.py",
    }
    ready = prepare_job(submission, namespace="default")
    framework = find_framework("pytorch")
    job = read_job(ready.job, framework)
    pod = render_pod(job, framework, WORKER, ServiceTopology(job, framework))
    assert ready.code is not None
    maps = {ready.code["metadata"]["name"]: ready.code}
    assert run_pod(pod, maps, tmp_path / "pod").log == "7 ['a b']\n"


def test_namespace_package_is_sent_with_its_main_module(project: Path, settings: Settings) -> None:
    write(project / "bare/__main__.py", "from bare import deep\n")
    write(project / "bare/deep.py")
    write(project / "bare/unused.py")
    assert set(prepare_submission(project, settings, "bare").code) == {
        "bare/__main__.py",
        "bare/deep.py",
    }


def test_installed_module_is_not_sent(project: Path, settings: Settings) -> None:
    assert prepare_submission(project, settings, "torch.distributed.run").code == {}
