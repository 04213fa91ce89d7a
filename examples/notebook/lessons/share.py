"""The images that one replica sees."""

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def share_of(images: np.ndarray, labels: np.ndarray) -> DataLoader:
    """This replica's share, in batches."""
    data = TensorDataset(torch.from_numpy(images), torch.from_numpy(labels))
    return DataLoader(data, batch_size=32, sampler=DistributedSampler(data))
