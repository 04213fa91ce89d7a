"""The handwritten digits that come with scikit-learn."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


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
