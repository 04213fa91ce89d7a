"""Train with a chief that schedules steps on workers, and parameter servers that hold the network.

Workers and parameter servers never exit by themselves; the job ends with the chief.
"""

import sys

import tensorflow as tf

from digits import checksum, first_parameters, loss_of, part, verdict

STEPS = 400
RATE = 0.1


def serve(resolver: tf.distribute.cluster_resolver.TFConfigClusterResolver) -> None:
    server = tf.distribute.Server(
        resolver.cluster_spec(),
        job_name=resolver.task_type,
        task_index=resolver.task_id,
        protocol=resolver.rpc_layer or "grpc",
    )
    print(f"{resolver.task_type} {resolver.task_id} serves", flush=True)
    server.join()


def batches() -> tf.data.Dataset:
    """Return all digits, shuffled differently on each worker."""
    return tf.data.Dataset.from_tensor_slices(part(0, 1)).shuffle(2000).repeat().batch(64)


def read_by(task: str, parameters: list[tf.Variable]) -> str:
    """Return a checksum of the parameters as this task reads them from the parameter servers."""
    with tf.device(f"{task}/device:CPU:0"):
        return checksum([tf.identity(parameter).numpy() for parameter in parameters])


def main() -> int:
    resolver = tf.distribute.cluster_resolver.TFConfigClusterResolver()
    if resolver.task_type in ("worker", "ps"):
        serve(resolver)
    strategy = tf.distribute.ParameterServerStrategy(resolver)
    coordinator = tf.distribute.coordinator.ClusterCoordinator(strategy)
    with strategy.scope():
        parameters = [tf.Variable(value) for value in first_parameters()]

    @tf.function
    def step(iterator: tf.data.Iterator) -> None:
        def update(images: tf.Tensor, labels: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = loss_of(parameters, images, labels)
            for parameter, gradient in zip(
                parameters, tape.gradient(loss, parameters), strict=True
            ):
                parameter.assign_sub(RATE * gradient)

        strategy.run(update, args=next(iterator))

    images, labels = map(tf.constant, part(0, 1))
    before = float(loss_of(parameters, images, labels))
    iterator = iter(coordinator.create_per_worker_dataset(batches))
    for _ in range(STEPS):
        coordinator.schedule(step, args=(iterator,))
    coordinator.join()
    after = float(loss_of(parameters, images, labels))

    workers = len(resolver.cluster_spec().as_dict()["worker"])
    tasks = [f"/job:worker/replica:0/task:{index}" for index in range(workers)]
    found = [read_by(task, parameters) for task in tasks]
    print(f"{workers} workers took {STEPS} steps", flush=True)
    return verdict(found, before, after)


if __name__ == "__main__":
    sys.exit(main())
