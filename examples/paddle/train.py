"""Train on several replicas with paddle.DataParallel; all must end with the same network.

Started by `python -m paddle.distributed.launch train.py`, which takes the number of nodes and the
address of the first from PADDLE_NNODES and PADDLE_MASTER. Each rank has a share of the digits.
"""

import hashlib
import sys

import numpy as np
import paddle
import paddle.distributed as dist
from paddle.nn import functional
from sklearn.datasets import load_digits

STEPS = 120


def own_part(rank: int, world: int) -> tuple[paddle.Tensor, paddle.Tensor]:
    """Return this rank's images (values from 0 to 1) and labels."""
    images, labels = load_digits(return_X_y=True)
    images = (images / 16).astype(np.float32)
    return paddle.to_tensor(images[rank::world]), paddle.to_tensor(labels[rank::world])


def checksums(model: paddle.nn.Layer) -> list[str]:
    """Gather a checksum of the parameters from every rank."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.numpy().tobytes())
    own = np.frombuffer(digest.digest()[:6], dtype=np.uint16).astype(np.int64)
    found: list[paddle.Tensor] = []
    dist.all_gather(found, paddle.to_tensor(own))
    return ["".join(f"{part:04x}" for part in tensor.numpy()) for tensor in found]


def main() -> int:
    paddle.set_device("cpu")
    dist.init_parallel_env()
    rank, world = dist.get_rank(), dist.get_world_size()
    print(f"rank {rank} of {world}", flush=True)
    paddle.seed(rank)
    network = paddle.nn.Sequential(
        paddle.nn.Linear(64, 64), paddle.nn.ReLU(), paddle.nn.Linear(64, 10)
    )
    model = paddle.DataParallel(network)
    optimiser = paddle.optimizer.Adam(5e-3, parameters=model.parameters())
    images, labels = own_part(rank, world)
    losses = []
    for _ in range(STEPS):
        loss = functional.cross_entropy(model(images), labels)
        loss.backward()
        optimiser.step()
        optimiser.clear_grad()
        losses.append(float(loss))

    found = checksums(network)
    if len(set(found)) > 1:
        print(f"the ranks disagree: {found}", file=sys.stderr)
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
