"""The notebooks of Kubeflow Trainer (8c0f5059bd51): what becomes of their TrainJobs here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from danlu.engine.settings import Settings
from danlu.submission.options import TrainOptions
from danlu.submission.plan import plan_job
from danlu.training.document import ManifestError
from danlu.training.frameworks.train_job import LAUNCHER, NODE
from tests.conftest import Danlu
from tests.kubeflow.test_client import SCRIPTS, Account, account, sdk

__all__ = ["account", "sdk"]

#: ``manifests/base/runtimes/{torchtune,data-cache}``, with what a reader and the SDK look at.
RUNTIME = """\
apiVersion: trainer.kubeflow.org/v1alpha1
kind: ClusterTrainingRuntime
metadata: {{name: {name}, labels: {{trainer.kubeflow.org/framework: {framework}}}}}
spec:
  mlPolicy: {{numNodes: 1, torch: {{}}}}
  template:
    spec:
      {claims}
      replicatedJobs:
{stages}
      - name: node
        template:
          metadata: {{labels: {{trainer.kubeflow.org/trainjob-ancestor-step: trainer}}}}
          spec:
            template:
              spec:
                containers:
                - {{name: node, image: a, volumeMounts: [{mount}]}}
---
"""
STAGE = """\
      - name: {name}
        template:
          metadata: {{labels: {{trainer.kubeflow.org/trainjob-ancestor-step: {name}}}}}
          spec: {{template: {{spec: {{containers: [{{name: {name}, image: a, {more}}}]}}}}}}
"""
MOUNT = "{name: initializer, mountPath: /workspace}"
CLAIMS = "volumeClaimPolicies: [{templates: [{metadata: {name: initializer}, spec: {}}]}]"
CACHE = "env: [{name: CACHE_IMAGE, value: a}]"


def write_runtimes(file: Path) -> None:
    stages = [
        STAGE.format(name=name, more=f"volumeMounts: [{MOUNT}]")
        for name in ("dataset-initializer", "model-initializer")
    ]
    tuned = {"framework": "torchtune", "claims": CLAIMS, "stages": "".join(stages), "mount": MOUNT}
    names = ("torchtune-llama3.2-1b", "torchtune-qwen2.5-1.5b")
    texts = [RUNTIME.format(name=name, **tuned) for name in names]
    cache = STAGE.format(name="dataset-initializer", more=CACHE)
    name, fields = "torch-distributed-with-cache", {"claims": "", "mount": "", "stages": cache}
    texts.append(RUNTIME.format(name=name, framework="torch", **fields))
    file.write_text("".join(texts))


TORCHTUNE = ("spec.trainer.command: torchtune's recipes are not chosen here",)
DATA_CACHE = ("spec.initializer.dataset.storageUri: Kubeflow's data cache runs on a cluster only",)
#: Policy, nodes and processes of each; or why it is refused.
EXPECTED: dict[str, tuple[object, ...]] = {
    "deepspeed/text-summarization/T5-Fine-Tuning.ipynb": ("mpi", 2, 4),
    "jax/image-classification/mnist.ipynb": ("jax", 3, 1),
    "jax/tpu_smoke_test.ipynb": ("jax", 1, 1),
    "local/local-container-mnist.ipynb": ("torch", 2, 1),
    "local/local-training-mnist.ipynb": ("torch", 1, 1),
    "megatron/tensor-parallelism/megatron-core-gpt-tp.ipynb": ("torch", 2, "auto"),
    "mlx/image-classification/mnist.ipynb": ("mpi", 3, 1),
    "mlx/language-modeling/fine-tune-llama.ipynb": ("mpi", 4, 1),
    "pytorch/audio-classification/audio-classification.ipynb, locally": ("torch", 1, 1),
    "pytorch/audio-classification/audio-classification.ipynb": ("torch", 1, 1),
    "pytorch/data-cache/fine-tune-with-cache.ipynb": DATA_CACHE,
    "pytorch/image-classification/mnist.ipynb, locally": ("torch", 1, 1),
    "pytorch/image-classification/mnist.ipynb": ("torch", 3, 3),
    "pytorch/question-answering/fine-tune-distilbert.ipynb": ("torch", 1, 2),
    "pytorch/speech-recognition/speech-recognition.ipynb, locally": ("torch", 1, 1),
    "pytorch/speech-recognition/speech-recognition.ipynb": ("torch", 1, 2),
    "torchtune/llama3_2/alpaca-trainjob-yaml.ipynb": TORCHTUNE,
    "torchtune/qwen2_5/qwen2.5-1.5B-with-alpaca.ipynb": TORCHTUNE,
    "xgboost/distributed-training/xgboost-distributed.ipynb": ("xgboost", 3, 1),
}


@pytest.mark.real
@pytest.mark.timeout(600)
def test_jobs_of_the_notebooks_are_planned_or_refused_by_name(
    account: Account, settings: Settings
) -> None:
    write_runtimes(account.project / "runtimes.yaml")
    command = [sys.executable, str(SCRIPTS / "trainer_examples.py"), "runtimes.yaml"]
    result = subprocess.run(
        command, cwd=account.project, env=account.variables, capture_output=True, check=False
    )
    assert result.returncode == 0, result.stderr.decode()
    found = {
        example: find_outcome(document, account.project, settings)
        for example, document in json.loads(result.stdout).items()
    }
    assert found == EXPECTED


def find_outcome(
    document: dict[str, object], directory: Path, settings: Settings
) -> tuple[object, ...]:
    (directory / "job.json").write_text(json.dumps(document))
    options = TrainOptions(directory=directory, file="job.json", further_files=("runtimes.yaml",))
    try:
        job = plan_job(options, settings=settings).job
    except ManifestError as error:
        return tuple(f"{finding.path}: {finding.message}" for finding in error.findings)
    nodes = job.replica_count(NODE) + job.replica_count(LAUNCHER)
    return job.options["policy"], nodes, job.options["processes"]


BUILD = """\
def build():
    base(os="debian12")
    install.python(version="3.11")
    install.python_packages(name=["xgboost-cpu", "scikit-learn"])
"""


@pytest.mark.training
@pytest.mark.timeout(600)
def test_the_notebook_of_xgboost_runs_with_another_image(
    real_home: Path, danlu: Danlu, sdk: Path, tmp_path: Path
) -> None:
    account = Account(tmp_path, sdk, home=real_home)
    (account.project / "build.envd").write_text(BUILD)
    danlu("build", "-t", "xgboost-notebook:1", cwd=account.project)
    lines = account.run("xgboost_notebook.py", client="TrainerClient(image='xgboost-notebook:1')")
    assert {f"Worker {rank}: Training complete!" for rank in range(3)} < set(lines)
    assert {f"Worker {rank}/3 connected" for rank in range(3)} < set(lines)
    assert (account.project / "xgboost_model.json").stat().st_size > 0
