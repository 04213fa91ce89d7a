"""The predictor of the packed model: `danlu pack model.npz --predictor predict.py:Digits`."""

from typing import Annotated

import numpy as np

from network import Network


class Digits:
    example = {"images": np.linspace(0, 1, 3 * 64, dtype=np.float32).reshape(3, 64)}

    def load(self, directory: str) -> None:
        self.network = Network(f"{directory}/model.npz")

    def predict(self, images: Annotated[np.ndarray, "float32", (None, 64)]) -> dict:
        scores = self.network.score(images)
        return {"digits": scores.argmax(axis=1), "scores": scores}
