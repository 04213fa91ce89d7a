"""Train on several replicas with DistributedDataParallel; all must end with the same network.

It reads the rank and the address of rank 0 from the environment, with and without `torchrun`. Each
rank starts with different weights and has a share of the digits.
"""

import argparse
import hashlib
import os
import sys

import numpy as np
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def held_out_split() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the training images, held-out images, and their labels, the same on every rank."""
    images, labels = load_digits(return_X_y=True)
    split = train_test_split((images / 16).astype(np.float32), labels, random_state=7)
    train, held_out, train_labels, held_out_labels = map(torch.from_numpy, split)
    return train, held_out, train_labels, held_out_labels


def train(model: nn.Module, data: TensorDataset, epochs: int) -> None:
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler)
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for images, labels in loader:
            optimiser.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimiser.step()
        if dist.get_rank() == 0:
            print(f"epoch {epoch + 1}: loss {loss.item():.4f} in its last batch", flush=True)


def judge(model: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> tuple[float, float]:
    """Return the loss and the accuracy on held-out images."""
    with torch.no_grad():
        scores = model(images)
    loss = nn.functional.cross_entropy(scores, labels).item()
    return loss, (scores.argmax(dim=1) == labels).float().mean().item()


def checksums(model: nn.Module) -> list[str]:
    """Gather a checksum of the parameters from every rank."""
    digest = hashlib.sha256()
    for parameter in model.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    found = [""] * dist.get_world_size()
    dist.all_gather_object(found, digest.hexdigest()[:12])
    return found


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=3)
    epochs = parser.parse_args().epochs
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    torch.manual_seed(dist.get_rank())
    print(f"rank {dist.get_rank()} of {dist.get_world_size()}", flush=True)

    images, held_out, labels, held_out_labels = held_out_split()
    network = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    model = DistributedDataParallel(network)
    before, _ = judge(network, held_out, held_out_labels)
    train(model, TensorDataset(images, labels), epochs)
    after, accuracy = judge(network, held_out, held_out_labels)

    found = checksums(network)
    rank = dist.get_rank()
    dist.barrier()  # who leaves first would take its connections from the others
    dist.destroy_process_group()
    if len(set(found)) > 1:
        print(f"the ranks disagree: {found}", file=sys.stderr)
        return 1
    if after > before / 2:
        print(f"the loss did not fall: {before:.4f} -> {after:.4f}", file=sys.stderr)
        return 1
    if rank == 0:
        print(
            f"result: {len(found)} ranks agree on {found[0]}; "
            f"loss {before:.4f} -> {after:.4f}; accuracy {accuracy:.4f}",
            flush=True,
        )
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    # DistributedDataParallel keeps gloo's threads even if the group is destroyed. If one of them
    # calls into the interpreter during its shutdown, the process aborts.
    os._exit(code)
