"""Fit a line by gradient descent with momentum; continue from the last checkpoint.

``--die-at 5 11`` kills the program at these steps, once each, as a node that fails would.
"""

import argparse
import json
import os
import random
import signal

import danlu

EVERY = 4

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, default=40)
parser.add_argument("--die-at", type=int, nargs="*", default=[])
options = parser.parse_args()

directory = danlu.checkpoint_dir()
checkpoint = directory / "last.json"
if checkpoint.exists():
    state = json.loads(checkpoint.read_text())
    print("continuing at step", state["step"], flush=True)
else:
    state = {"step": 0, "weights": [0.0, 0.0], "momentum": [0.0, 0.0]}

while state["step"] < options.steps:
    step = state["step"]
    if step in options.die_at and not (directory / f"died-{step}").exists():
        (directory / f"died-{step}").touch()
        os.kill(os.getpid(), signal.SIGKILL)

    batch = random.Random(step)  # every process draws the same numbers at a step
    inputs = [batch.uniform(-1, 1) for _ in range(32)]
    points = [(x, 3 * x - 1 + batch.gauss(0, 0.1)) for x in inputs]
    slope, offset = state["weights"]
    errors = [(x, slope * x + offset - y) for x, y in points]
    gradients = [sum(e * x for x, e in errors) / 32, sum(e for _, e in errors) / 32]
    state["momentum"] = [0.8 * m + g for m, g in zip(state["momentum"], gradients, strict=True)]
    state["weights"] = [slope - 0.1 * state["momentum"][0], offset - 0.1 * state["momentum"][1]]
    state["loss"] = sum(e * e for _, e in errors) / 32
    state["step"] = step + 1

    if state["step"] % EVERY == 0 and os.environ.get("RANK", "0") == "0":
        # A new file, then a rename: a crash never leaves half of a checkpoint.
        temporary = directory / "new.json"
        temporary.write_text(json.dumps(state))
        os.replace(temporary, checkpoint)

print("loss", state["loss"])
