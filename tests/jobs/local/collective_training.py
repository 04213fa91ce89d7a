"""A program: fit a line with other ranks, as ``torch.distributed`` would, and save checkpoints.

Rank 0 hands out the shards of each batch, and adds up the gradients in their order, so that every
number of ranks gives the same loss. Without ``--elastic`` a rank that loses another one waits
forever, as a collective does; with it the others go on, and ranks join again.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

SHARDS, EVERY = 4, 5

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=400)
parser.add_argument("--elastic", action="store_true")
options = parser.parse_args()
size = int(os.environ.get("WORLD_SIZE", "1"))
host, port = os.environ.get("MASTER_ADDR", ""), os.environ.get("MASTER_PORT", "0")
if options.elastic:
    host, port = os.environ["PET_RDZV_ENDPOINT"].rsplit(":", 1)
address = host, int(port)
directory = Path(os.environ["DANLU_CHECKPOINT_DIR"])
done, checkpoint = directory / "done", directory / "last.json"


def lose_rank() -> None:
    if not options.elastic:
        signal.pause()


class Peer:
    """A connection to another rank, which sends and receives lines of JSON."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rwb")

    def send(self, value: Any) -> bool:
        try:
            self._file.write(json.dumps(value).encode() + b"\n")
            self._file.flush()
        except OSError:
            return False
        return True

    def receive(self) -> Any:
        """Return None at the end of the connection."""
        try:
            line = self._file.readline()
        except OSError:
            return None
        return json.loads(line) if line.endswith(b"\n") else None


def gradients(step: int, shard: int, weights: list[float]) -> list[float]:
    batch = random.Random(step * SHARDS + shard)
    inputs = [batch.uniform(-1, 1) for _ in range(8)]
    points = [(x, 3 * x - 1 + batch.gauss(0, 0.1)) for x in inputs]
    errors = [(x, weights[0] * x + weights[1] - y) for x, y in points]
    return [sum(e * x for x, e in errors), sum(e for _, e in errors), sum(e * e for _, e in errors)]


def lead(listener: socket.socket | None) -> None:
    peers: list[Peer] = []
    while listener is not None and not options.elastic and len(peers) < size - 1:
        peers.append(Peer(listener.accept()[0]))
    state = {"step": 0, "weights": [0.0, 0.0], "loss": 0.0}
    if checkpoint.exists():
        state = json.loads(checkpoint.read_text())
    while state["step"] < options.steps:
        while listener is not None and select.select([listener], [], [], 0)[0]:
            peers.append(Peer(listener.accept()[0]))
        state = train_step(state, peers)
        if state["step"] % EVERY == 0:
            temporary = directory / "new.json"
            temporary.write_text(json.dumps(state))
            temporary.replace(checkpoint)
    done.touch()
    for peer in peers:
        peer.send("done")
    print("loss", state["loss"])


def train_step(state: Any, peers: list[Peer]) -> Any:
    step, weights = state["step"], state["weights"]
    found: dict[int, list[float]] = {}
    for number, peer in enumerate(peers, 1):
        shards = list(range(number, SHARDS, len(peers) + 1))
        peer.send([step, shards, weights])
        results = peer.receive()
        if results is None:
            lose_rank()
        found |= zip(shards, results or (), strict=False)
    for shard in set(range(SHARDS)) - set(found):
        found[shard] = gradients(step, shard, weights)
    peers[:] = [peer for peer in peers if peer.send("alive")]
    totals = [sum(found[shard][index] for shard in range(SHARDS)) / 32 for index in range(3)]
    time.sleep(0.01)  # a step of a real training takes longer
    new = [weight - 0.1 * total for weight, total in zip(weights, totals, strict=False)]
    return {"step": step + 1, "weights": new, "loss": totals[2]}


def follow() -> None:
    while not done.exists():
        try:
            peer = Peer(socket.create_connection(address))
        except OSError:
            time.sleep(0.01)  # until rank 0 listens
            continue
        while (message := peer.receive()) is not None:
            if message == "done":
                sys.exit(0)
            if message != "alive":
                step, shards, weights = message
                peer.send([gradients(step, shard, weights) for shard in shards])
        if not done.exists():
            lose_rank()


if os.environ["INDEX"] != "0":
    follow()
elif options.elastic or size > 1:
    with socket.create_server(address) as listener:
        lead(listener)
else:
    lead(None)
