"""Model directories come from anywhere: links, pipes and empty ones are reported."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.serving.model_directory import LARGE_FILE, read_model_directory
from danlu.serving.predictors.registry import choose_predictor


def test_files_are_listed_and_large_ones_are_separate(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "weights.bin").touch()
    os.truncate(tmp_path / "sub" / "weights.bin", LARGE_FILE)
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "link").symlink_to("config.json")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("x")
    model = read_model_directory(tmp_path)
    assert [file.path for file in model.files] == ["config.json", "link", "sub/weights.bin"]
    assert model.large == ("sub/weights.bin",)


def test_a_file_is_a_model_of_one_file(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("x")
    (tmp_path / "model.onnx").write_text("x")
    model = read_model_directory(tmp_path / "model.onnx")
    assert [file.path for file in model.files] == ["model.onnx"]
    assert model.is_file


@pytest.mark.parametrize("target", ["/etc/passwd", "../outside", ".."])
def test_a_link_out_of_the_directory_is_refused(tmp_path: Path, target: str) -> None:
    (tmp_path / "outside").write_text("x")
    directory = tmp_path / "model"
    directory.mkdir()
    (directory / "weights").symlink_to(target)
    with pytest.raises(UsageError, match=r"weights in the model directory is a link to .*outside"):
        read_model_directory(directory)


def test_a_pipe_an_empty_directory_and_a_missing_one_are_refused(tmp_path: Path) -> None:
    directory = tmp_path / "model"
    with pytest.raises(UsageError, match="not found"):
        read_model_directory(directory)
    directory.mkdir()
    with pytest.raises(UsageError, match="is empty"):
        read_model_directory(directory)
    os.mkfifo(directory / "pipe")
    with pytest.raises(UsageError, match="pipe in the model directory is not a file"):
        read_model_directory(directory)
    (directory / "pipe").unlink()
    (directory / "gone").symlink_to("nowhere")
    with pytest.raises(UsageError, match="gone in the model directory cannot be read"):
        read_model_directory(directory)


@pytest.mark.parametrize(
    ("files", "name"),
    [
        ({"MLmodel": "", "python_env.yaml": ""}, "mlflow"),
        ({"saved_model.pb": "", "variables/variables.index": ""}, "tensorflow"),
        ({"model.onnx": ""}, "onnx"),
        ({"config.json": '{"model_type": "bert"}', "model.safetensors": ""}, "huggingface"),
        ({"model.joblib": ""}, "sklearn"),
        ({"model.skops": ""}, "sklearn"),
        ({"model.ubj": ""}, "xgboost"),
        ({"model.json": '{"learner": {}}'}, "xgboost"),
        ({"model.pt": ""}, "torch"),
        ({"config.json": "[" * 9999, "model.safetensors": ""}, "torch"),
    ],
)
def test_a_ready_made_predictor_is_chosen_by_files(
    tmp_path: Path, files: dict[str, str], name: str
) -> None:
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
    chosen = choose_predictor("", read_model_directory(tmp_path))
    assert chosen.name == name
    assert f"class {chosen.class_name}" in chosen.source.read_text()


def test_an_unknown_model_names_the_predictors(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text("x")
    model = read_model_directory(tmp_path)
    with pytest.raises(UsageError, match="no ready-made predictor fits") as error:
        choose_predictor("", model)
    assert "sklearn, xgboost, torch" in error.value.hint
    with pytest.raises(UsageError, match="unknown predictor 'tourch'"):
        choose_predictor("tourch", model)
