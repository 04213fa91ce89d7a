# mypy: ignore-errors
"""A function on two nodes: all calls of the client."""

from kubeflow.trainer import CustomTrainer, TrainerClient


def fit(steps, text):
    import os

    import notes

    rank, nodes = os.environ["JAX_PROCESS_ID"], os.environ["JAX_NUM_PROCESSES"]
    for step in range(steps):
        print(f"node {rank} of {nodes}: step {step}, {text}, {notes.TEXT}, a\tb \\ $HOME")


client = TrainerClient()
print([runtime.name for runtime in client.list_runtimes()])
runtime = client.get_runtime("jax-distributed")
trainer = CustomTrainer(
    func=fit,
    func_args={"steps": 2, "text": "{x}"},
    num_nodes=2,
    resources_per_node={"cpu": 1},
)
name = client.train(runtime=runtime, trainer=trainer)
client.wait_for_job_status(name, {"Running"}, polling_interval=1)
print(*client.get_job_logs(name, follow=True), sep="\n")
states = []
job = client.wait_for_job_status(name, polling_interval=1, callbacks=[states.append])
assert (job.name, job.status, job.num_nodes) == (name, "Complete", 2)
assert job.runtime == runtime
assert states[-1] == job
for step in job.steps:
    print(
        step.name,
        step.status,
        step.pod_name == f"{name}-node-0-{step.name[-1]}",
        step.device,
        step.device_count,
    )
print(*client.get_job_logs(name, step="node-1"), sep="\n")
events = client.get_job_events(name)
assert {event.involved_object_name for event in events} == {name}
assert sorted(events, key=lambda event: event.event_time) == events
print(events[-1].reason)
assert [job.name for job in client.list_jobs(runtime=runtime)] == [name]
assert client.list_jobs(runtime=client.get_runtime("torch-distributed")) == []
client.delete_job(name)
print(client.list_jobs())
