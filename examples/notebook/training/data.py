"""Load the images that one replica trains on."""

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def load_share(images: np.ndarray, labels: np.ndarray) -> DataLoader:
    """Return this replica's share, in batches."""
    data = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
    return DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
