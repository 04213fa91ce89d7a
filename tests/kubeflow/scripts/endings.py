# mypy: ignore-errors
"""What the client raises, and jobs that end otherwise."""

from kubeflow.trainer import BuiltinTrainer, CustomTrainer, TorchTuneConfig, TrainerClient
from kubeflow.trainer.options import ActiveDeadlineSeconds, Name


def fail():
    raise ValueError("no data")


def run_on():
    import threading

    print("started", flush=True)
    threading.Event().wait()


def report(call):
    try:
        call()
    except Exception as error:
        cause = str(error.__cause__ or "").strip().rpartition("\n")[2]
        print(f"{type(error).__name__}: {error}", *filter(None, [cause]), sep=" <- ")


client = TrainerClient()
trainer = CustomTrainer(func=fail, num_nodes=2)
client.train("team", trainer=trainer, options=[Name("fails")])
report(lambda: client.wait_for_job_status("fails", polling_interval=1))
print(client.get_job("fails").status, list(client.get_job_logs("fails"))[-1])

trainer = CustomTrainer(func=run_on)
client.train("plain-distributed", trainer=trainer, options=[Name("late"), ActiveDeadlineSeconds(1)])
print(client.wait_for_job_status("late", {"Failed"}, polling_interval=1).status)

client.train("plain-distributed", trainer=trainer, options=[Name("long")])
print(client.wait_for_job_status("long", {"Running"}, polling_interval=1).status)
print(next(client.get_job_logs("long", follow=True)))
report(lambda: client.wait_for_job_status("long", timeout=2, polling_interval=1))
report(lambda: client.train("plain-distributed", trainer=trainer, options=[Name("long")]))
client.delete_job("long")

report(lambda: client.get_job("long"))
report(lambda: list(client.get_job_logs("long")))
report(lambda: client.delete_job("long"))
report(lambda: client.get_runtime("torchtune"))
report(lambda: client.train(trainer=BuiltinTrainer(config=TorchTuneConfig())))
