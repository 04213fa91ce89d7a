"""Train with parameter servers in the style of TensorFlow 1: one session per worker, no chief.

Worker 0 initializes the parameters; then each worker takes steps at its own pace. At the end they
wait for one another and compare the parameters that they read.
"""

import json
import os
import sys
import time
from collections.abc import Callable

import tensorflow as tf

from digits import checksum, first_parameters, loss_of, part, verdict

v1 = tf.compat.v1

STEPS = 200
RATE = 0.3
LIMIT = 60


def wait_until(met: Callable[[], bool]) -> None:
    """Poll ``met`` until it is true, for at most LIMIT seconds."""
    deadline = time.monotonic() + LIMIT
    while not met():
        if time.monotonic() > deadline:
            raise TimeoutError("the other workers did not arrive in time")
        time.sleep(0.05)


def work(cluster: v1.train.ClusterSpec, server: v1.train.Server, index: int) -> int:
    count = cluster.num_tasks("worker")
    images, labels = part(index, count)
    with v1.device(v1.train.replica_device_setter(cluster=cluster)):
        values = [v1.Variable(value, name=f"p{i}") for i, value in enumerate(first_parameters())]
        met = v1.Variable(0, name="met", dtype=tf.int32)
        said = v1.Variable([""] * count, name="said", dtype=tf.string)
    loss = loss_of(values, images, labels)
    step = v1.train.GradientDescentOptimizer(RATE).minimize(loss, var_list=values)
    unset = v1.report_uninitialized_variables()
    own = v1.placeholder(tf.string, shape=())
    say = v1.scatter_update(said, [index], [own])
    meet = v1.assign_add(met, 1, use_locking=True)

    with v1.Session(server.target) as session:
        if index == 0:
            session.run(v1.global_variables_initializer())
        wait_until(lambda: not len(session.run(unset)))
        print(f"worker {index} of {count}", flush=True)
        before = session.run(loss)
        for _ in range(STEPS):
            session.run(step)
        after = session.run(loss)
        session.run(meet)
        # ">=", because others may already have counted themselves for the second barrier.
        wait_until(lambda: session.run(met) >= count)
        session.run(say, {own: checksum(session.run(values))})
        session.run(meet)
        wait_until(lambda: session.run(met) >= 2 * count)
        found = [text.decode() for text in session.run(said)]
    return verdict(found, float(before), float(after))


def main() -> int:
    v1.disable_eager_execution()
    config = json.loads(os.environ["TF_CONFIG"])
    kind, index = config["task"]["type"], config["task"]["index"]
    cluster = v1.train.ClusterSpec(config["cluster"])
    server = v1.train.Server(cluster, job_name=kind, task_index=index)
    if kind == "ps":
        print(f"ps {index} serves", flush=True)
        server.join()
    return work(cluster, server, index)


if __name__ == "__main__":
    sys.exit(main())
