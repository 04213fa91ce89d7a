"""Tests of the framework; `make test` runs them with the wheel that was just built."""

import pytest
from furnace import Linear
from furnace._kernels import descend


def test_training_finds_the_weights() -> None:
    layer = Linear(2)
    losses = layer.fit([[1, 0], [0, 1], [1, 1]], [2, -1, 1], rate=0.5, steps=200)
    assert losses[-1] < 1e-9
    assert layer([3, 4]) == pytest.approx(2)


def test_inputs_without_a_target_are_an_error() -> None:
    with pytest.raises(ValueError, match="a row for each target"):
        descend(bytes(24), bytes(8), bytearray(16), 0.1)
