# mypy: ignore-errors
"""A dataset and a model that are loaded before a function runs."""

from kubeflow.trainer import (
    CustomTrainer,
    HuggingFaceDatasetInitializer,
    HuggingFaceModelInitializer,
    Initializer,
    TrainerClient,
)
from kubeflow.trainer.options import Name


def fit():
    import os
    from pathlib import Path

    for name in ("DATASET", "MODEL"):
        files = (path for path in Path(os.environ[name]).rglob("*") if path.is_file())
        names = (str(path.relative_to(os.environ[name])) for path in files)
        print(name, *sorted(name for name in names if not name.startswith(".cache/")))


def train(name, uri):
    initializer = Initializer(
        dataset=HuggingFaceDatasetInitializer(
            uri, ignore_patterns=["*.bin"], access_token="hidden"
        ),
        model=HuggingFaceModelInitializer("hf://team/net", access_token="hidden"),
    )
    paths = {"DATASET": "/workspace/dataset", "MODEL": "/workspace/model"}
    trainer = CustomTrainer(func=fit, num_nodes=2, env=paths)
    client.train("plain-distributed", initializer, trainer, options=[Name(name)])


client = TrainerClient()
train("loaded", "hf://team/data")
client.wait_for_job_status("loaded", polling_interval=1)
for step in client.get_job("loaded").steps:
    lines = [*client.get_job_logs("loaded", step=step.name)]
    print(step.name, step.status, *(line for line in lines if line.startswith(("the ", "DATASET"))))
print(*client.get_job_logs("loaded", step="node-1"), sep="\n")

train("missing", "hf://team/none")
try:
    client.wait_for_job_status("missing", polling_interval=1)
except RuntimeError as error:
    print(error)
print(*(f"{step.name} {step.status}" for step in client.get_job("missing").steps))
print(*client.get_job_logs("missing", step="dataset-initializer"), sep="\n")
try:
    train("unknown", "gs://team/data")
except RuntimeError as error:
    print(error, "<-", error.__cause__)
