"""Train with the framework, in the image that only has its wheel (see build.envd)."""

import json
from pathlib import Path

from furnace import Linear

inputs = [[x / 10, 1.0] for x in range(20)]
targets = [3 * x - 2 for x, _ in inputs]
layer = Linear(2)
losses = layer.fit(inputs, targets, rate=0.3, steps=300)
Path("model.json").write_text(json.dumps(list(layer.weights)))
slope, offset = layer.weights
print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}; y = {slope:.2f} x + {offset:.2f}")
