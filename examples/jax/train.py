"""Train one model in several JAX processes; all must end with the same parameters.

A job sets COORDINATOR_ADDRESS, COORDINATOR_PORT, NUM_PROCESSES and PROCESS_ID. Each process has a
share of the digits and a full copy of the parameters.
"""

import hashlib
import os
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from sklearn.datasets import load_digits

STEPS = 200
RATE = 0.5

Parameters = list[jax.Array]


def connect() -> None:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    address, port = os.environ["COORDINATOR_ADDRESS"], os.environ["COORDINATOR_PORT"]
    jax.distributed.initialize(
        coordinator_address=f"{address}:{port}",
        num_processes=int(os.environ["NUM_PROCESSES"]),
        process_id=int(os.environ["PROCESS_ID"]),
    )
    print(f"process {jax.process_index()} of {jax.process_count()}", flush=True)


def own_part() -> tuple[np.ndarray, np.ndarray]:
    """Return this process's share of the digits; all shares have the same size."""
    images, labels = load_digits(return_X_y=True)
    each = len(images) // jax.process_count()
    first = each * jax.process_index()
    images = (images / 16).astype(np.float32)
    return images[first : first + each], labels[first : first + each]


def first_parameters() -> list[np.ndarray]:
    random = np.random.default_rng(7)
    shapes = [(64, 32), (32,), (32, 10), (10,)]
    return [random.normal(0, 0.1, shape).astype(np.float32) for shape in shapes]


def scores(parameters: Parameters, images: jax.Array) -> jax.Array:
    first, first_bias, second, second_bias = parameters
    return jnp.tanh(images @ first + first_bias) @ second + second_bias


def loss_of(parameters: Parameters, images: jax.Array, labels: jax.Array) -> jax.Array:
    """Return the mean over the digits of all processes, which XLA combines with a collective."""
    chances = jax.nn.log_softmax(scores(parameters, images))
    return -jnp.take_along_axis(chances, labels[:, None], axis=1).mean()


@jax.jit
def step(
    parameters: Parameters, images: jax.Array, labels: jax.Array
) -> tuple[Parameters, jax.Array]:
    loss, gradients = jax.value_and_grad(loss_of)(parameters, images, labels)
    return [old - RATE * change for old, change in zip(parameters, gradients, strict=True)], loss


def checksums(parameters: Parameters) -> list[str]:
    """Gather a checksum of the parameters from every process."""
    digest = hashlib.sha256()
    for parameter in parameters:
        digest.update(np.asarray(parameter.addressable_data(0)).tobytes())
    own = np.frombuffer(digest.digest()[:8], dtype=np.uint32)
    return [row.tobytes().hex() for row in multihost_utils.process_allgather(own)]


def main() -> int:
    connect()
    mesh = Mesh(np.array(jax.devices()), ("data",))
    divided = NamedSharding(mesh, PartitionSpec("data"))
    whole = NamedSharding(mesh, PartitionSpec())
    images, labels = (jax.make_array_from_process_local_data(divided, part) for part in own_part())
    parameters = [
        jax.make_array_from_process_local_data(whole, value) for value in first_parameters()
    ]
    losses = []
    for _ in range(STEPS):
        parameters, loss = step(parameters, images, labels)
        losses.append(float(loss))
    found = checksums(parameters)
    rank = jax.process_index()
    jax.distributed.shutdown()
    if len({*found}) > 1:
        print(f"the processes disagree: {found}", file=sys.stderr)
        return 1
    if losses[-1] > losses[0] / 2:
        print(f"the loss did not fall: {losses[0]:.4f} -> {losses[-1]:.4f}", file=sys.stderr)
        return 1
    if rank == 0:
        print(
            f"result: {len(found)} ranks agree on {found[0]}; "
            f"loss {losses[0]:.4f} -> {losses[-1]:.4f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
