"""A program: fit a line with ``torch.distributed``, and continue from the last checkpoint.

Each shard of a batch has a row of its own in what the ranks add up, so that every number of ranks
gives the same loss.
"""

from __future__ import annotations

import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

STEPS, SHARDS, EVERY = 1200, 4, 5

torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, size = dist.get_rank(), dist.get_world_size()
checkpoint = Path(os.environ["DANLU_CHECKPOINT_DIR"], "last.pt")
weights = torch.zeros(2, dtype=torch.float64)
optimizer = torch.optim.SGD([weights], lr=0.02, momentum=0.8)
first, losses = 0, torch.zeros(1)
if checkpoint.exists():
    state = torch.load(checkpoint)
    first, losses = state["step"], state["losses"]
    weights.copy_(state["weights"])
    optimizer.load_state_dict(state["optimizer"])
# A rank may have read a checkpoint that rank 0 has replaced since.
start = torch.tensor([first])
dist.broadcast(start, 0)
if first != int(start):
    raise SystemExit(f"rank {rank} has step {first}, and rank 0 step {int(start)}")
print(f"rank {rank} of {size} continues at step {first}", flush=True)

for step in range(first, STEPS):
    rows = torch.zeros(SHARDS, 3, dtype=torch.float64)
    for shard in range(rank, SHARDS, size):
        numbers = torch.Generator().manual_seed(step * SHARDS + shard)
        x = torch.rand(8, generator=numbers, dtype=torch.float64) * 2 - 1
        noise = torch.randn(8, generator=numbers, dtype=torch.float64) / 10
        errors = weights[0] * x + weights[1] - (3 * x - 1 + noise)
        rows[shard] = torch.stack([(errors * x).mean(), errors.mean(), (errors**2).mean()])
    dist.all_reduce(rows)
    total = rows.sum(0) / SHARDS
    weights.grad, losses = total[:2], total[2:]
    optimizer.step()
    time.sleep(0.1)  # a step of a real training takes longer
    if (step + 1) % EVERY == 0 and rank == 0:
        temporary = checkpoint.with_name("new.pt")
        state = {"step": step + 1, "losses": losses, "weights": weights}
        torch.save({**state, "optimizer": optimizer.state_dict()}, temporary)
        temporary.replace(checkpoint)

if rank == 0:
    print(f"loss {losses.item()!r}", flush=True)
dist.destroy_process_group()
