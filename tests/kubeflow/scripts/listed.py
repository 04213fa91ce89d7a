# mypy: ignore-errors
"""Jobs that were not started with the client."""

from kubeflow.trainer import TrainerClient

import danlu

danlu.train("job.yaml", host_python=True, log=None)
danlu.train(print, args=["other"], framework="pytorch", name="other", host_python=True, log=None)
client = TrainerClient()
for job in client.list_jobs():
    print(job.name, job.runtime.name, job.num_nodes, job.status, *client.get_job_logs(job.name))
try:
    client.get_job("other")
except RuntimeError as error:
    print(error.__cause__)
