"""Load the saved network and check that it classifies the held-out digits as train.py did."""

import json
import sys

from digits import held_out_split
from network import Network


def main() -> int:
    _, held_out, _, labels = held_out_split()
    predicted = Network("model.npz").classify(held_out).tolist()
    with open("predictions.json") as file:
        before = json.load(file)["predicted"]
    changed = sum(now != then for now, then in zip(predicted, before, strict=True))
    right = sum(now == label for now, label in zip(predicted, labels.tolist(), strict=True))
    print(f"{right} of {len(predicted)} held-out digits correct; {changed} predictions changed")
    return 1 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
