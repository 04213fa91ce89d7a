"""Payloads of the references' protocols: the same meaning, refused, or other on purpose.

``payload_cases.json`` has for each what MLflow 3.17 (its scoring server), KServe 0.21, Triton and
SageMaker's inference toolkit 1.10 make of it, and what danlu gives: ``same``, ``refused`` with a
text of the reason, or ``gives`` with the reason why not the same.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.serving.asgi import post
from tests.serving.recorders import TYPES, Recorder, array_recorder, serve

CASES = json.loads(Path(__file__).with_name("payload_cases.json").read_text())
PATHS = {
    "mlflow": "/invocations", "sagemaker": "/invocations",
    "v1": "/v1/models/m:predict", "v2": "/v2/models/m/infer",
}  # fmt: skip


def make_recorder(case: dict[str, Any]) -> Recorder:
    """The predictor that the reference's answer is about."""
    if case["protocol"] == "v2":
        return array_recorder(case.get("dtype"))
    if case["protocol"] != "mlflow":
        return Recorder(list)
    pandas = pytest.importorskip("pandas")
    columns = None
    if "signature" in case:
        columns = {
            item["name"]: {"dtype": TYPES[item["type"]], "optional": not item["required"]}
            for item in case["signature"]
        }
    return Recorder(pandas.DataFrame, columns, ignores_others=True)


def read_got(case: dict[str, Any], answer: Any) -> Any:
    if case["protocol"] == "v2":
        (output,) = answer["outputs"]
        return json.loads(output["data"][0])
    return answer.get("predictions", answer)["got"]


def select_cases(*protocols: str) -> pytest.MarkDecorator:
    cases = [case for case in CASES if case["protocol"] in protocols]
    return pytest.mark.parametrize("case", cases, ids=lambda case: case["name"])


@select_cases("v1", "v2", "sagemaker")
def test_a_payload_means_what_its_reference_says(case: dict[str, Any]) -> None:
    check_case(case)


@pytest.mark.real
@select_cases("mlflow")
@pytest.mark.usefixtures("pandas_path")
def test_a_payload_means_what_mlflow_says(case: dict[str, Any]) -> None:
    check_case(case)


def check_case(case: dict[str, Any]) -> None:
    app = serve(make_recorder(case))
    headers = {"content_type": case["content_type"]} if "content_type" in case else {}
    answer = post(app, PATHS[case["protocol"]], case["body"].encode(), **headers)
    if "refused" in case:
        assert 400 <= answer.status < 500, answer
        assert case["refused"] in answer.json["error"]
        return
    assert answer.status == 200, answer
    if case.get("same"):
        assert read_got(case, answer.json) == case["reference"]
    else:
        assert read_got(case, answer.json) == case["gives"]
        assert case["why"]
