"""The handwritten digits that come with scikit-learn, and a network that classifies them."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn


def held_out_split() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the training images, held-out images, and the labels of both; always the same split.

    Images have shape (count, 1, 8, 8) and values from 0 to 1.
    """
    digits = load_digits()
    images = (digits.images[:, None] / 16).astype(np.float32)
    split = train_test_split(
        images, digits.target, test_size=0.25, random_state=7, stratify=digits.target
    )
    train, held_out, train_labels, held_out_labels = map(torch.from_numpy, split)
    return train, held_out, train_labels, held_out_labels


def network() -> nn.Module:
    """Return a small convolutional network from 8 x 8 pixels to ten scores."""
    return nn.Sequential(
        nn.Conv2d(1, 16, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, kernel_size=3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 4 * 4, 64),
        nn.ReLU(),
        nn.Linear(64, 10),
    )


def classify(model: nn.Module, images: torch.Tensor) -> torch.Tensor:
    """Return the digit in each image."""
    model.eval()
    with torch.no_grad():
        return model(images).argmax(dim=1)
