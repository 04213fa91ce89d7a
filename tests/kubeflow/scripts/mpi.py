# mypy: ignore-errors
"""A function that mpirun starts on each node."""

from kubeflow.trainer import CustomTrainer, TrainerClient


def say_rank():
    import os

    print("rank", os.environ["OMPI_COMM_WORLD_RANK"], "of", os.environ["OMPI_COMM_WORLD_SIZE"])


client = TrainerClient()
trainer = CustomTrainer(func=say_rank, num_nodes=2)
name = client.train(runtime="deepspeed-distributed", trainer=trainer)
job = client.wait_for_job_status(name)
print(job.num_nodes, *((step.name, step.status) for step in job.steps))
print(*sorted(client.get_job_logs(name)), sep="\n")
