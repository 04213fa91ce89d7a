"""A PyTorch network: TorchScript, an exported program, or weights and the function of the network.

Weights are read with ``weights_only=True`` and from safetensors: neither executes code.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import numpy as np


class InvalidTensor(ValueError):
    """Text, or a shape that the network does not take, is the client's fault."""

    status_code = 400


class TorchPredictor:
    """The outputs of the network for a batch of inputs."""

    #: With weights: ``module`` and ``name`` of a function that returns the network.
    options: dict[str, str] = {}

    def load(self, directory: str) -> None:
        """Load the first ``.pt2``, ``.safetensors``, ``.pt`` or ``.pth`` file."""
        torch = importlib.import_module("torch")

        names = sorted(os.listdir(directory))
        for suffix in (".pt2", ".safetensors", ".pt", ".pth"):
            for name in names:
                if name.endswith(suffix):
                    self.network: Any = self._load_network(
                        torch, os.path.join(directory, name), suffix
                    )
                    return
        raise FileNotFoundError("no file that ends in .pt2, .safetensors, .pt or .pth")

    def _load_network(self, torch: Any, path: str, suffix: str) -> Any:
        if suffix == ".pt2":
            return torch.export.load(path).module()
        if suffix == ".safetensors":
            load_file = importlib.import_module("safetensors.torch").load_file

            return self._fill_network(load_file(path))
        try:
            return torch.jit.load(path, map_location="cpu").eval()
        except RuntimeError:
            return self._fill_network(torch.load(path, map_location="cpu", weights_only=True))

    def _fill_network(self, weights: Any) -> Any:
        if not self.options:
            raise ValueError("the file has only weights: --network FILE:FUNCTION says of what")
        module = importlib.import_module(self.options["module"])
        network = getattr(module, self.options["name"])()
        network.load_state_dict(weights)
        return network.eval()

    def predict(self, inputs: np.ndarray) -> Any:
        """Return the network's output for ``inputs``.

        Numbers with a fraction are float32. Whole numbers, of which JSON does not say whether they
        are indices or values, are int64, or float32 for a network that does not take int64.
        """
        torch = importlib.import_module("torch")

        try:
            batch = torch.as_tensor(inputs)
            if batch.dtype == torch.float64:
                batch = batch.float()
            with torch.no_grad():
                return self._call_network(batch)
        except (IndexError, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, torch.cuda.OutOfMemoryError) or "CUDA error" in str(error):
                raise
            raise InvalidTensor(f"the network refuses it: {error}") from error

    def _call_network(self, batch: Any) -> Any:
        try:
            return self.network(batch)
        except RuntimeError:
            if batch.is_floating_point():
                raise
            return self.network(batch.float())
