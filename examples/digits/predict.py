"""The predictor of the packed model: `danlu pack model.pt --predictor predict.py:Digits`."""

from typing import Annotated

import torch

from network import network


class Digits:
    example = {"images": torch.linspace(0, 1, 3 * 64).reshape(3, 1, 8, 8)}

    def load(self, directory: str) -> None:
        self.network = network()
        weights = torch.load(f"{directory}/model.pt", weights_only=True)
        self.network.load_state_dict(weights)
        self.network.eval()

    def predict(self, images: Annotated[torch.Tensor, "float32", (None, 1, 8, 8)]) -> dict:
        with torch.no_grad():
            scores = self.network(images)
        return {"digits": scores.argmax(dim=1), "scores": scores}
