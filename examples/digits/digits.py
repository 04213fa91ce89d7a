"""The handwritten digits that come with scikit-learn."""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split


def held_out_split() -> list[np.ndarray]:
    """Return the training images, held-out images, and the labels of both; always the same split.

    Images have shape (count, 64), for 8 x 8 pixels, and values from 0 to 1.
    """
    images, labels = load_digits(return_X_y=True)
    return train_test_split(
        (images / 16).astype(np.float32), labels, test_size=0.25, random_state=7, stratify=labels
    )
