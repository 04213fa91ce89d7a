# mypy: ignore-errors
"""MLflow's client of scoring servers, against a server with the model of test_served_clients.py."""

import json
import sys

import pandas as pd
from mlflow.pyfunc.scoring_server.client import ScoringServerClient

client = ScoringServerClient("127.0.0.1", int(sys.argv[1]))
client.ping()
frame = pd.DataFrame({"x": [[1.0, 2.0], [3.0, 4.0]], "texts": ["a", "b"]})
table = {"x": frame["x"].tolist(), "texts": frame["texts"].tolist()}
for data in (
    frame,
    json.dumps({"inputs": table}),
    json.dumps({"instances": frame.to_dict("records")}),
    json.dumps({"dataframe_records": frame.to_dict("records")}),
    json.dumps({"dataframe_split": frame.to_dict("split")}),
):
    answer = client.invoke(data)["predictions"]
    assert answer["y"] == [[2, 4], [6, 8]], answer
    assert answer["texts"] == ["aa", "bb"], answer
