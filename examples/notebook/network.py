"""The network of pytorch.ipynb, in a module next to the notebook."""

from torch import nn


def digits_network(hidden: int) -> nn.Module:
    """Images of 8 × 8 pixels in, a score for each of the ten digits out."""
    return nn.Sequential(nn.Linear(64, hidden), nn.ReLU(), nn.Linear(hidden, 10))
