"""A very small deep-learning framework: one layer, its kernel in C++."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from furnace._kernels import descend


class Linear:
    """A linear layer without bias, trained by gradient descent on the mean squared error."""

    def __init__(self, size: int) -> None:
        self.weights = array("d", bytes(8 * size))

    def __call__(self, inputs: Sequence[float]) -> float:
        return sum(weight * value for weight, value in zip(self.weights, inputs, strict=True))

    def fit(
        self,
        inputs: Sequence[Sequence[float]],
        targets: Sequence[float],
        *,
        rate: float,
        steps: int,
    ) -> list[float]:
        """Train, and return the loss before each step."""
        flat = array("d", [value for row in inputs for value in row])
        wanted = array("d", targets)
        return [descend(flat, wanted, self.weights, rate) for _ in range(steps)]
