# mypy: ignore-errors
"""A function in containers of an environment."""

from kubeflow.trainer import CustomTrainer, TrainerClient
from kubeflow.trainer.options import Name


def fit():
    import os
    import pathlib
    import sys

    import notes

    pathlib.Path(f"out-{os.environ['JAX_PROCESS_ID']}").write_text(notes.TEXT)
    print(os.getcwd(), sys.executable)


client = TrainerClient()
client.train("jax-distributed", trainer=CustomTrainer(func=fit, num_nodes=2), options=[Name("sdk")])
client.wait_for_job_status("sdk", polling_interval=1)
print(*client.get_job_logs("sdk", step="node-1"))
client.delete_job("sdk")
