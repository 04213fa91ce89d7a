"""Train the network, print its accuracy after each epoch, and save it with its predictions."""

import json
import sys

import numpy as np
from sklearn.neural_network import MLPClassifier

from digits import held_out_split
from network import Network

EPOCHS = 12
WANTED = 0.95


def main() -> int:
    images, held_out, labels, held_out_labels = held_out_split()
    model = MLPClassifier((64,), learning_rate_init=4e-3, batch_size=32, random_state=7)
    for epoch in range(1, EPOCHS + 1):
        model.partial_fit(images, labels, classes=range(10))
        reached = model.score(held_out, held_out_labels)
        print(f"epoch {epoch:2}  loss {model.loss_:.4f}  accuracy {reached:.4f}", flush=True)
    weights = {f"weights{n}": values for n, values in enumerate(model.coefs_)}
    biases = {f"biases{n}": values for n, values in enumerate(model.intercepts_)}
    np.savez("model.npz", **weights, **biases)
    predicted = Network("model.npz").classify(held_out).tolist()
    with open("predictions.json", "w") as file:
        json.dump({"accuracy": reached, "predicted": predicted}, file)
    if reached < WANTED:
        print(f"held-out accuracy {reached:.4f} is below {WANTED}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
