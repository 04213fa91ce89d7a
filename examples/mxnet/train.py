"""Train on several workers with a `dist_sync` store; all must end with the same network.

The same program runs as scheduler, server and worker, depending on DMLC_ROLE: `import mxnet`
returns only in a worker. Each worker has a share of the digits.
"""

import hashlib
import sys

import mxnet
import numpy as np
from mxnet import autograd, gluon, nd
from sklearn.datasets import load_digits

STEPS = 120
CHECKSUMS = 1_000_000  # a key of the store that no parameter has


def own_part(rank: int, world: int) -> tuple[nd.NDArray, nd.NDArray]:
    """Return this worker's images (values from 0 to 1) and labels."""
    images, labels = load_digits(return_X_y=True)
    return nd.array(images[rank::world] / 16), nd.array(labels[rank::world])


def checksums(network: gluon.Block, store: mxnet.kvstore.KVStore) -> list[str]:
    """Gather a checksum of the parameters from every worker."""
    digest = hashlib.sha256()
    for parameter in network.collect_params().values():
        digest.update(parameter.data().asnumpy().tobytes())
    table = np.zeros((store.num_workers, 3), dtype=np.float32)
    table[store.rank] = np.frombuffer(digest.digest()[:6], dtype=np.uint16)
    store.init(CHECKSUMS, nd.zeros(table.shape))
    store.push(CHECKSUMS, nd.array(table))
    summed = nd.zeros(table.shape)
    store.pull(CHECKSUMS, out=summed)
    return ["".join(f"{int(part):04x}" for part in row) for row in summed.asnumpy()]


def share(parameters: list[gluon.Parameter], store: mxnet.kvstore.KVStore) -> None:
    """Give all workers the initial parameters of the first one."""
    for key, parameter in enumerate(parameters):
        store.init(key, parameter.data())
        store.pull(key, out=parameter.data())
    # Otherwise a worker could push its first gradients before it has pulled the parameters.
    nd.waitall()


def train(network: gluon.Block, store: mxnet.kvstore.KVStore) -> list[float]:
    """Return the loss on this worker's digits before each step."""
    images, labels = own_part(store.rank, store.num_workers)
    parameters = list(network.collect_params().values())
    share(parameters, store)
    loss_of = gluon.loss.SoftmaxCrossEntropyLoss()
    trainer = gluon.Trainer(parameters, "adam", {"learning_rate": 5e-3}, kvstore=None)
    losses = []
    for _ in range(STEPS):
        with autograd.record():
            loss = loss_of(network(images), labels).mean()
        loss.backward()
        for key, parameter in enumerate(parameters):
            store.push(key, parameter.grad())
            store.pull(key, out=parameter.grad())
        trainer.step(store.num_workers)
        losses.append(float(loss.asscalar()))
    return losses


def main() -> int:
    store = mxnet.kv.create("dist_sync")
    print(f"worker {store.rank} of {store.num_workers}", flush=True)
    mxnet.random.seed(store.rank)
    network = gluon.nn.Sequential()
    network.add(gluon.nn.Dense(64, in_units=64, activation="relu"), gluon.nn.Dense(10, in_units=64))
    network.initialize()
    losses = train(network, store)

    found = checksums(network, store)
    if len(set(found)) > 1:
        print(f"the workers disagree: {found}", file=sys.stderr)
        return 1
    if losses[-1] > losses[0] / 2:
        print(f"the loss did not fall: {losses[0]:.4f} -> {losses[-1]:.4f}", file=sys.stderr)
        return 1
    if store.rank == 0:
        print(
            f"result: {len(found)} ranks agree on {found[0]}; "
            f"loss {losses[0]:.4f} -> {losses[-1]:.4f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
