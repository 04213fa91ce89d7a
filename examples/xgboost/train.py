"""Boost trees on several replicas; all must end with the same model.

A job sets MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK. The master runs the tracker through
which the replicas connect, and trains like the others. Each replica has a share of the data.
"""

import hashlib
import os
import socket
import sys

import numpy as np
import xgboost
from sklearn.datasets import load_breast_cancer
from xgboost import collective

ROUNDS = 20
RANK = int(os.environ["RANK"])
WORLD = int(os.environ["WORLD_SIZE"])


def start_tracker(address: str, port: int) -> xgboost.RabitTracker | None:
    if RANK != 0:
        return None
    tracker = xgboost.RabitTracker(n_workers=WORLD, host_ip=address, port=port, sortby="task")
    tracker.start()
    return tracker


def own_part() -> xgboost.DMatrix:
    """Return this rank's share of the rows."""
    features, labels = load_breast_cancer(return_X_y=True)
    return xgboost.DMatrix(features[RANK::WORLD], labels[RANK::WORLD])


def checksums(model: xgboost.Booster) -> list[str]:
    """Gather a checksum of the model from every rank."""
    own = hashlib.sha256(bytes(model.save_raw(raw_format="ubj"))).digest()[:4]
    table = np.zeros(WORLD, dtype=np.int64)
    table[collective.get_rank()] = int.from_bytes(own, "big")
    return [f"{value:08x}" for value in collective.allreduce(table, collective.Op.SUM)]


def train() -> int:
    data = own_part()
    history: dict[str, dict[str, list[float]]] = {}
    model = xgboost.train(
        {"objective": "binary:logistic", "tree_method": "hist", "max_depth": 3, "nthread": 1},
        data,
        num_boost_round=ROUNDS,
        evals=[(data, "train")],
        evals_result=history,
        verbose_eval=5,
    )
    losses = history["train"]["logloss"]
    found = checksums(model)
    if len(set(found)) > 1:
        print(f"the ranks disagree: {found}", file=sys.stderr)
        return 1
    if losses[-1] > losses[0] / 2:
        print(f"the loss did not fall: {losses[0]:.4f} -> {losses[-1]:.4f}", file=sys.stderr)
        return 1
    if RANK == 0:
        print(
            f"result: {WORLD} ranks agree on {found[0]}; loss {losses[0]:.4f} -> {losses[-1]:.4f}",
            flush=True,
        )
    return 0


def main() -> int:
    address = socket.gethostbyname(os.environ["MASTER_ADDR"])
    port = int(os.environ["MASTER_PORT"])
    tracker = start_tracker(address, port)
    # A replica may start long before the master, so it retries with back-off.
    arguments = {
        "dmlc_communicator": "rabit",
        "dmlc_tracker_uri": address,
        "dmlc_tracker_port": port,
        "dmlc_task_id": f"{RANK:04}",
        "dmlc_retry": 10,
        "dmlc_timeout": 120,
    }
    with collective.CommunicatorContext(**arguments):
        print(f"rank {collective.get_rank()} of {collective.get_world_size()}", flush=True)
        code = train()
    if tracker is not None:
        tracker.wait_for(60)
    return code


if __name__ == "__main__":
    sys.exit(main())
