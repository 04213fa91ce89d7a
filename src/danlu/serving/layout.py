"""Where the parts of a packed model are in its image."""

from __future__ import annotations

#: The directory of everything that packing adds to an environment.
ROOT = "/opt/predictor"

#: The files of the model directory.
MODEL = f"{ROOT}/model"

#: The predictor's modules.
CODE = f"{ROOT}/code"

#: The program that loads the predictor: :mod:`danlu.serving.runner`.
PROGRAM = f"{ROOT}/run.py"

#: Which class the predictor is, and the schema of its inputs (JSON).
PREDICTOR = f"{ROOT}/predictor.json"

#: The example inputs and the outputs that training's environment gave for them (JSON).
GOLDEN = f"{ROOT}/golden.json"

#: What the image was made from: the lock, its packages, the training image's layers (JSON).
ORIGIN = f"{ROOT}/origin.json"

#: The model server's modules and what they need.
SERVER = f"{ROOT}/server"

#: The model server's program, by which others start such images, too: ``docker run IMAGE serve``.
SERVE = "/usr/local/bin/serve"

#: The label that says that an image is a packed model; its value is the version of this layout.
LABEL = "dev.danlu.packed"
LAYOUT_VERSION = "1"

#: The label with the name of the model server (:mod:`danlu.serving.model_servers`).
SERVER_LABEL = "dev.danlu.server"
