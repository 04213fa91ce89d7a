# mypy: ignore-errors
"""Random payloads for a scikit-learn pipeline and XGBoost: MLflow's scoring server against danlu's.

Prints how many ended how. Both must give the same predictions, or danlu refuses; it answers what
MLflow refuses only for a tensor of another type, which it converts if that changes no value.
"""

import collections
import json
import logging
import pathlib
import random
import sys
import tempfile
import warnings

import mlflow
import numpy as np
import pandas as pd
import xgboost
from mlflow.models import infer_signature
from mlflow.pyfunc import scoring_server
from sklearn.compose import ColumnTransformer
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from danlu.serving import predictor_values as values
from danlu.serving.predictors.mlflow import MlflowPredictor
from danlu.serving.server.app import ServerApp
from danlu.serving.server.model import ServedModel
from tests.serving.asgi import get, post

warnings.simplefilter("ignore")
logging.disable(logging.CRITICAL)
COUNT, RANDOM = int(sys.argv[1]), random.Random(7)
V1, V2, INVOKE = "/v1/models/m:predict", "/v2/models/m/infer", "/invocations"
PLACE = pathlib.Path(tempfile.mkdtemp(dir=sys.argv[2]))
KINDS = {
    "texts": {"text": str, "stars": int, "length": float},
    "trees": {"age": int, "income": float, "debt": float, "own": bool},
}
#: Datatypes by kind: the signature's first.
DATATYPES = {
    str: {"BYTES": object}, bool: {"BOOL": bool},
    int: {"INT64": "int64", "INT32": "int32", "FP32": "float32"},
    float: {"FP64": "float64", "FP32": "float32", "INT64": "int64"},
}  # fmt: skip


def make_cell(kind, is_bad=False):
    if is_bad and RANDOM.random() < 0.35:
        return RANDOM.choice([None, True, 1.5, "x", "1", 2**53 + 1, 2**40, -3, [1], {}])
    return {
        str: " ".join(RANDOM.choice(["good", "bad", "[1]", "ok"]) for _ in range(2)),
        int: RANDOM.randint(0, 90),
        float: RANDOM.choice([round(RANDOM.gauss(20, 9), 3), RANDOM.randint(0, 60)]),
        bool: RANDOM.random() < 0.5,
    }[kind]


def make_frame(kinds, rows):
    return pd.DataFrame(
        {name: [make_cell(kind) for _ in range(rows)] for name, kind in kinds.items()}
    )


def save_models():
    frame = make_frame(KINDS["texts"], 200)
    parts = [("t", TfidfVectorizer(), "text"), ("n", "passthrough", ["stars", "length"])]
    target = ((frame.stars > 45) | frame.text.str.contains("good")).astype(int)
    pipe = make_pipeline(ColumnTransformer(parts), LogisticRegression()).fit(frame, target)
    mlflow.sklearn.save_model(
        pipe, PLACE / "texts", signature=infer_signature(frame, target),
        input_example=frame.head(2), serialization_format="cloudpickle",
    )  # fmt: skip
    frame = make_frame(KINDS["trees"], 200).astype({"debt": "float32", "income": "float64"})
    target = (frame.income - 3 * frame.debt + frame.age / 10 > -30).astype(int)
    booster = xgboost.train({"max_depth": 3}, xgboost.DMatrix(frame, target), 10)
    signature = infer_signature(frame, booster.predict(xgboost.DMatrix(frame)))
    mlflow.xgboost.save_model(
        booster, PLACE / "trees", signature=signature, input_example=frame.head(2)
    )


def serve(directory):
    predictor = MlflowPredictor()
    predictor.load(str(directory))
    example = json.loads(json.dumps(values.encode_value(predictor.example())))
    arguments = values.convert_input(
        values.decode_value(example), values.describe_predictor(predictor)
    )
    output = json.loads(json.dumps(values.encode_value(predictor.predict(**arguments))))

    def load():
        model = ServedModel(
            predictor, {"examples": [{"input": example, "output": output}]}, name="m"
        )
        model.warm_up()
        return model

    app = ServerApp(load)
    app.start()
    return app


def make_table(kinds):
    """Columns in another order, missing or added, and cells that may be wrong."""
    columns, is_bad, change = list(kinds), RANDOM.random() < 0.4, RANDOM.random()
    if change < 0.5:
        RANDOM.shuffle(columns)
    elif change > 0.9:
        columns.pop()
    elif change > 0.8:
        columns.append("zz")
    rows = RANDOM.choice([1, 1, 2, 3])
    return columns, [[make_cell(kinds.get(c, int), is_bad) for c in columns] for _ in range(rows)]


def make_body(kinds, form):
    columns, rows = make_table(kinds)
    if form == "dataframe_split":
        return {form: {"columns": columns, "data": rows}}
    if form == "inputs":
        return {form: {name: [row[at] for row in rows] for at, name in enumerate(columns)}}
    if form == "csv":
        return "\n".join(
            ",".join("" if cell is None else str(cell) for cell in row) for row in [columns, *rows]
        )
    return {form: [dict(zip(columns, row, strict=True)) for row in rows]}


def ask_mlflow(model, text, kind):
    try:
        answer = scoring_server.invocations(text, kind, model, model.metadata.get_input_schema())
    except Exception as error:
        return getattr(error, "get_http_status_code", lambda: 500)(), str(error)
    return answer.status, json.loads(answer.response)["predictions"]


def compare(place, expected, answer, sent):
    status, predictions = expected
    if answer.status >= 500:
        outcome = "failed"
    elif answer.status != 200:
        outcome = "both refuse" if status != 200 else "refused"
    elif status != 200:
        outcome = "answered"
    else:
        found = answer.json["outputs"][0]["data"] if "outputs" in answer.json else None
        found = answer.json["predictions"] if found is None else found
        outcome = "same" if np.allclose(predictions, found, rtol=1e-6) else "different"
    outcomes[place, outcome] += 1
    if outcome in ("different", "failed", *(["answered"] if place != "v2" else [])):
        print(place, outcome, str(sent)[:500], expected, answer.body[:500])


def check_example(app, model, directory):
    """The model answers its own example on every contract."""
    expected = np.asarray(model.predict(model.input_example)).tolist()
    sent = (directory / "serving_input_example.json").read_bytes()
    assert post(app, INVOKE, sent).json["predictions"] == expected
    records = model.input_example.to_dict("records")
    assert post(app, V1, {"instances": records}).json["predictions"] == expected
    tensors = [
        {**about, "shape": [len(records)], "data": model.input_example[about["name"]].tolist()}
        for about in get(app, "/v2/models/m").json["inputs"]
    ]
    assert post(app, V2, {"inputs": tensors}).json["outputs"][0]["data"] == expected


def check_model(name):
    kinds, model, app = KINDS[name], mlflow.pyfunc.load_model(PLACE / name), serve(PLACE / name)
    check_example(app, model, PLACE / name)
    for form in ("dataframe_split", "dataframe_records", "instances", "inputs", "csv"):
        kind = "text/csv" if form == "csv" else "application/json"
        for _ in range(COUNT // 5):
            body = make_body(kinds, form)
            text = body if form == "csv" else json.dumps(body)
            expected = ask_mlflow(model, text, kind)
            compare(form, expected, post(app, INVOKE, text.encode(), content_type=kind), text)
    for _ in range(COUNT):
        body = make_body(kinds, "instances")
        records = json.dumps({"dataframe_records": body["instances"]})
        compare("v1", ask_mlflow(model, records, "application/json"), post(app, V1, body), body)
    for _ in range(COUNT):
        columns, rows = make_table(kinds)
        tensors, frame = [], {}
        for column in columns:
            kind = kinds.get(column, int)
            datatype, dtype = RANDOM.choice(list(DATATYPES[kind].items()))
            data = [make_cell(kind) for _ in rows]
            data = list(map(int, data)) if datatype.startswith("INT") else data
            shape = RANDOM.choice([[len(rows)], [len(rows), 1]])
            tensors.append({"name": column, "datatype": datatype, "shape": shape, "data": data})
            frame[column] = np.array(data, dtype)
        try:
            expected = 200, np.asarray(model.predict(pd.DataFrame(frame))).tolist()
        except Exception as error:
            expected = 400, str(error)
        compare("v2", expected, post(app, V2, {"inputs": tensors}), tensors)


outcomes = collections.Counter()
save_models()
for name in KINDS:
    check_model(name)
totals = collections.Counter()
for (_, outcome), count in outcomes.items():
    totals[outcome] += count
print(json.dumps(totals))
