"""Each ready-made predictor packs a model of its framework, and the image is verified."""

from __future__ import annotations

import json

import pytest

from tests.e2e.conftest import Project
from tests.test_repository import ROOT

# How `danlu.pack` saves an object, in the environment that has its framework.
SAVE_OBJECT = """
import pathlib, sys

sys.path.append("/danlu")
from danlu.api.packing import save_model


def save_object(model, name, example=None):
    directory = pathlib.Path("models", name)
    directory.mkdir(parents=True)
    save_model(model, example, directory)
"""

LIGHT = """
import os, pickle, joblib, numpy, onnx, skops.io, xgboost
from onnx import TensorProto, helper
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

rows, labels = load_iris(return_X_y=True)
model = LogisticRegression(max_iter=500).fit(rows, labels)
for name in ("joblib", "skops", "pickle", "xgboost", "onnx"):
    os.makedirs(f"models/{name}")
joblib.dump(model, "models/joblib/model.joblib")
skops.io.dump(model, "models/skops/model.skops")
with open("models/pickle/model.pkl", "wb") as file:
    pickle.dump(model, file)
options = {"num_class": 3, "objective": "multi:softprob"}
booster = xgboost.train(options, xgboost.DMatrix(rows, labels), 3)
booster.save_model("models/xgboost/model.json")
graph = helper.make_graph(
    [helper.make_node("MatMul", ["x", "w"], ["y"])],
    "product",
    [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])],
    [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
    [helper.make_tensor("w", TensorProto.FLOAT, [4, 2], numpy.arange(8.0))],
)
made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
made.ir_version = 9
onnx.save(made, "models/onnx/model.onnx")
save_object(model, "estimator")
save_object(booster, "booster")
"""

NETWORK = """
import torch


def network():
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
"""

TORCH = """
import os, mlflow, numpy, torch
from network import network
from safetensors.torch import save_file
from sklearn.linear_model import LogisticRegression
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

torch.manual_seed(1)
made = network().eval()
for name in ("state", "safetensors", "script", "exported", "huggingface"):
    os.makedirs(f"models/{name}")
torch.save(made.state_dict(), "models/state/model.pt")
save_file(made.state_dict(), "models/safetensors/model.safetensors")
torch.jit.trace(made, torch.zeros(1, 4)).save("models/script/model.pt")
torch.export.save(torch.export.export(made, (torch.zeros(1, 4),)), "models/exported/model.pt2")
with open("vocab.txt", "w") as file:
    file.write("\\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "hello", "world"]))
BertTokenizer("vocab.txt").save_pretrained("models/huggingface")
config = BertConfig(
    vocab_size=7, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
)
BertForSequenceClassification(config).save_pretrained("models/huggingface")
rows = numpy.array([[0.0, 1.0], [1.0, 0.0]])
fitted = LogisticRegression().fit(rows, [0, 1])
mlflow.sklearn.save_model(fitted, "models/mlflow", input_example=rows)
save_object(made, "traced", [[0.0] * 4])
save_object(torch.jit.script(made), "scripted")
"""

TENSORFLOW = """
import tensorflow as tf


class Product(tf.Module):
    def __init__(self):
        self.weights = tf.Variable([[1.0], [2.0]])

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def __call__(self, x):
        return {"y": x @ self.weights}


model = Product()
tf.saved_model.save(model, "models/tensorflow", signatures=model.__call__)
"""


def make_models(project: Project, packages: list[str], program: str) -> None:
    names = json.dumps(packages)
    project.write('install.python(version="3.11")', f"install.python_packages(name={names})")
    (project.directory / "network.py").write_text(NETWORK)
    (project.directory / "make.py").write_text(SAVE_OBJECT + program)
    (project.directory / "x.json").write_text("[[1, 2, 3, 4]]")
    (project.directory / "text.json").write_text('"hello world"')
    project("run", "-v", f"{ROOT / 'src'}:/danlu:ro", "--", "python", "make.py")


def pack_and_verify(project: Project, model: str, predictor: str, *arguments: str) -> list[str]:
    """Pack and verify; return the names of the packages in the image."""
    name = f"{model}:1"
    packed = project("pack", f"models/{model}", "-t", name, "--format", "json", *arguments)
    result = json.loads(packed.stdout)
    assert result["predictor"] == predictor
    assert result["comparison"]["values"] > 0
    assert "proved equal to the training environment" in project("verify", name).stderr
    return [package.partition("==")[0] for package in result["packages"]]


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.needs("root")
@pytest.mark.timeout(600)
def test_scikit_learn_xgboost_and_onnx_are_packed_and_replayed(project: Project) -> None:
    packages = ["scikit-learn", "skops", "xgboost-cpu", "onnxruntime", "onnx"]
    make_models(project, packages, LIGHT)
    for model in ("joblib", "pickle", "skops", "estimator"):
        found = pack_and_verify(project, model, "sklearn")
        assert {"scikit-learn", "numpy", "scipy"} <= set(found)
        assert "onnxruntime" not in found
        assert ("skops" in found) == (model == "skops")
    for model in ("xgboost", "booster"):
        assert "xgboost-cpu" in pack_and_verify(project, model, "xgboost")
    assert pack_and_verify(project, "onnx", "onnx") == ["numpy", "onnxruntime"]
    # The model of a job, by itself and by name.
    (project.directory / "again.py").write_text(
        "import shutil\nshutil.copytree('models/onnx', 'written', copy_function=shutil.copyfile)\n"
    )
    project("train", "again.py", "--framework", "pytorch", "--name", "writer")
    for arguments in (("written",), ()):
        packed = project("pack", *arguments, "--from", "writer", "-t", "written:1")
        assert packed.stdout.startswith("sha256:")
    failed = project("pack", "--from", "writter", "-t", "written:1", check=False)
    assert failed.returncode == 2
    assert "job 'writter' not found" in failed.stderr


@pytest.mark.training
@pytest.mark.needs("root")
@pytest.mark.timeout(1200)
def test_pytorch_hugging_face_and_mlflow_are_packed_and_replayed(project: Project) -> None:
    packages = ["torch==2.13.0", "safetensors", "transformers", "mlflow", "scikit-learn"]
    make_models(project, packages, TORCH)
    for model in ("state", "safetensors"):
        bare = project("pack", f"models/{model}", "-t", "x:1", "--example", "x.json", check=False)
        assert "--network FILE:FUNCTION" in bare.stderr
        pack_and_verify(
            project, model, "torch", "--network", "network.py:network", "--example", "x.json"
        )
    for model in ("script", "exported", "traced", "scripted"):
        found = pack_and_verify(project, model, "torch", "--example", "x.json")
        assert "transformers" not in found
    found = pack_and_verify(project, "huggingface", "huggingface", "--example", "text.json")
    assert "mlflow" not in found
    assert "mlflow" in pack_and_verify(project, "mlflow", "mlflow")


@pytest.mark.training
@pytest.mark.needs("root")
@pytest.mark.timeout(1200)
def test_tensorflow_is_packed_and_replayed(project: Project) -> None:
    make_models(project, ["tensorflow-cpu"], TENSORFLOW)
    assert "tensorflow-cpu" in pack_and_verify(project, "tensorflow", "tensorflow")
