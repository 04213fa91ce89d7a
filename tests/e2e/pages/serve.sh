cat >build.envd <<'END'
def build():
    base(os="debian12", dev=False)
    install.python(version="3.11")
    install.python_packages(name=["numpy", "pandas", "pillow"])
END
cat >predict.py <<'END'
import numpy as np


class Digits:
    example = {"pixels": [[0.0] * 64, [0.5] * 64]}

    def load(self, directory: str) -> None:
        self.weights = np.loadtxt(f"{directory}/weights.txt")

    def predict(self, pixels: list) -> dict:
        return {"digit": (np.asarray(pixels) @ self.weights).argmax(axis=1)}
END
mkdir model
printf '0 0 1\n%.0s' $(seq 64) >model/weights.txt
danlu pack model --predictor predict.py:Digits -t digits:1
python3 -c 'import json; print(json.dumps({"pixels": [[0.5] * 64]}))' >input.json
