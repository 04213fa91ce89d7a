"""A user's program with Kubeflow's SDK 0.5: run by its own environment, not by danlu's."""

# What it imports is not in danlu's environment.
# mypy: ignore-errors

import json
import sys

from kubeflow.common.types import KubernetesBackendConfig
from kubeflow.trainer import CustomTrainer, TrainerClient
from kubeflow.trainer.options import Labels, Name


def train():
    print("not run here: the kubelet is simulated")


client = TrainerClient(KubernetesBackendConfig(config_file=sys.argv[1], namespace=sys.argv[2]))
runtimes = [runtime.name for runtime in client.list_runtimes()]
name = client.train(
    runtime="torch-distributed",
    trainer=CustomTrainer(func=train, num_nodes=2, resources_per_node={"cpu": 2}),
    options=[Name("digits"), Labels({"team": "vision"})],
)
seen = []
client.wait_for_job_status(
    name, polling_interval=1, callbacks=[lambda job: seen.append((job.status, job.num_nodes))]
)
job = client.get_job(name)
output = {
    "runtimes": runtimes,
    "name": name,
    "seen": sorted({status for status, _ in seen}),
    "nodes": job.num_nodes,
    "status": job.status,
    "steps": [[step.name, step.status, step.pod_name, step.device_count] for step in job.steps],
    "logs": [*client.get_job_logs(name, step="node-1")],
    "followed": [*client.get_job_logs(name, follow=True)],
    "events": sorted({event.reason for event in client.get_job_events(name)}),
    "listed": [listed.name for listed in client.list_jobs()],
}
client.delete_job(name)
output["left"] = [listed.name for listed in client.list_jobs()]
print(json.dumps(output))
