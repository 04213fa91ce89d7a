# mypy: ignore-errors
"""A trainer with an image of its own, and a patch of its runtime."""

import sys

from kubeflow.trainer import CustomTrainerContainer, TrainerClient
from kubeflow.trainer.options import (
    ContainerPatch,
    JobSetSpecPatch,
    JobSetTemplatePatch,
    JobSpecPatch,
    JobTemplatePatch,
    Name,
    PodSpecPatch,
    PodTemplatePatch,
    ReplicatedJobPatch,
    RuntimePatch,
    TrainerArgs,
    TrainerCommand,
    TrainingRuntimeSpecPatch,
)

image, data = sys.argv[1:]
mount = ContainerPatch("node", volume_mounts=[{"name": "data", "mountPath": "/data"}])
pod = PodSpecPatch(
    volumes=[{"name": "data", "hostPath": {"path": data}}],
    containers=[mount],
)
node = ReplicatedJobPatch(
    "node", JobTemplatePatch(spec=JobSpecPatch(template=PodTemplatePatch(spec=pod)))
)
patch = TrainingRuntimeSpecPatch(
    template=JobSetTemplatePatch(spec=JobSetSpecPatch(replicated_jobs=[node]))
)
client = TrainerClient()
trainer = CustomTrainerContainer(image=image, num_nodes=2, env={"LEVEL": "info"})
client.train(
    runtime="torch-distributed",
    trainer=trainer,
    options=[
        Name("contained"),
        TrainerCommand(["sh", "-c"]),
        TrainerArgs(["echo $PET_NODE_RANK $LEVEL; cat /data/file; cat /bin/busybox | wc -c"]),
        RuntimePatch(patch),
    ],
)
client.wait_for_job_status("contained", polling_interval=1)
for step in client.get_job("contained").steps:
    print(step.name, step.status, *list(client.get_job_logs("contained", step=step.name))[:2])
