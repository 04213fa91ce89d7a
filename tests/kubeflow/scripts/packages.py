# mypy: ignore-errors
"""Packages of a function, and those of a runtime; progress."""

import sys

from kubeflow.trainer import CustomTrainer, TrainerClient
from kubeflow.trainer.options import Annotations, Labels, Name


def fit():
    import subprocess

    import fresh
    from kubeflow.trainer import update_trainjob_status

    for step in range(1000):
        print(f"step {step}", end="\r", flush=True)
    print()
    print(fresh.TEXT, "/sent/packages/" in fresh.__file__)
    print(subprocess.run(["fresh"], capture_output=True, text=True).stdout.strip())
    assert update_trainjob_status(progress_percent=70, metrics={"loss": 0.25})


wheel, index = sys.argv[1:]
client = TrainerClient()
trainer = CustomTrainer(
    func=fit,
    num_nodes=2,
    packages_to_install=[f"fresh @ file://{wheel}"],
    resources_per_node={"memory": "1Gi"},
)
marks = [Labels({"team": "vision"}), Annotations({"note": "first"})]
client.train("plain-distributed", trainer=trainer, options=[Name("fresh"), *marks])
client.wait_for_job_status("fresh", polling_interval=1)
for node in ("node-0", "node-1"):
    bar, *lines = client.get_job_logs("fresh", step=node)
    print(*lines[-2:], sep="\n")
    assert bar.startswith("step "), bar
    assert len(lines) < 50

trainer.packages_to_install, trainer.pip_index_urls = ["no-such-package"], [index]
try:
    client.train("plain-distributed", trainer=trainer)
except RuntimeError as error:
    print(error)
try:
    TrainerClient(env="build.envd").train("plain-distributed", trainer=trainer)
except ValueError as error:
    print(error)

client.get_runtime_packages(client.get_runtime("plain-distributed"))
print([job.name for job in client.list_jobs()])
