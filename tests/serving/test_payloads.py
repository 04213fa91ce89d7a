"""What payloads mean: types are kept or refused, tables keep names, batches change nothing."""

from __future__ import annotations

import base64
import gzip
import io
import json
import math
import shutil
import subprocess
import sys
import types
import zlib
from pathlib import Path
from typing import Annotated, Any

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.api import packing
from danlu.serving import predictor_values as values
from danlu.serving import runner
from danlu.serving.predictor_values import InvalidInputError, convert_input, decode_base64
from danlu.serving.server.app import ServerApp, ServerOptions
from tests.serving.asgi import Answer, ask, post
from tests.serving.recorders import Recorder, array_recorder, serve

INFER, V1, INVOKE = "/v2/models/m/infer", "/v1/models/m:predict", "/invocations"


def tensor(name: str, datatype: str, shape: list[int], data: Any, **parameters: Any) -> Any:
    found = {"name": name, "datatype": datatype, "shape": shape, "data": data}
    return {**found, "parameters": parameters} if parameters else found


def infer(app: ServerApp, *tensors: Any) -> Any:
    """Return what a recorder got, or the reason of the refusal."""
    answer = post(app, INFER, {"inputs": tensors})
    if answer.status != 200:
        assert answer.status == 400, answer
        return answer.json["error"]
    (output,) = answer.json["outputs"]
    if output.get("parameters") == {"content_type": "json"}:
        return json.loads(output["data"][0])
    return output["data"]


def got(answer: Answer) -> Any:
    assert answer.status == 200, answer
    found = answer.json.get("predictions", answer.json)
    return [item["got"] for item in found] if isinstance(found, list) else found["got"]


# -- types are kept or refused --------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "value"),
    [
        ("uint8", [[300, -1]]), ("uint8", [-1]), ("int8", [128]), ("int32", [4294967303]),
        ("int64", [1.7]), ("int64", [1.0]), ("int64", [2**63]), ("int64", [True]),
        ("int64", [None]), ("int64", ["1"]), ("float32", ["1.5"]), ("float32", [True, 1]),
        ("float32", [1e39]), ("float16", [70000]), ("float64", [2**53 + 1]), ("float64", [10**400]),
        ("bool", [1]), ("bool", [2.0]), ("str", [1]), ("object", [1]),
        ("float32", [[1], [2, 3]]), ("float32", [[1], 2]), ("float32", {"a": 1}),
        (None, [1, "a"]), (None, [None]), (None, [2**53 + 1, 0.5]),
        ("datetime64[D]", [1]), ("S3", ["a"]), (None, [2**63, -1]), (None, ["a\0"]),
        (None, [[]] * 2 + [1]),
    ],
)  # fmt: skip
def test_what_does_not_fit_an_array_is_refused(dtype: str | None, value: Any) -> None:
    app = serve(array_recorder(dtype))
    for path, body in ((INVOKE, {"x": value}), (INVOKE, {"instances": value})):
        answer = post(app, path, body)
        assert answer.status == 400, answer
        assert answer.json["error"]


@given(
    dtype=st.sampled_from(["float16", "float32", "float64", ">f4"]),
    numbers=st.lists(st.floats() | st.floats(width=16) | st.integers(-(1 << 53), 1 << 53)),
)
def test_fractions_are_rounded_as_numpy_rounds_them(dtype: str, numbers: list[Any]) -> None:
    exact = np.array(numbers, "float64")
    with np.errstate(over="ignore", invalid="ignore"):
        rounded = exact.astype(dtype)
    if (np.isinf(rounded) & ~np.isinf(exact)).any():
        with pytest.raises(InvalidInputError, match="does not fit"):
            values.make_array(numbers, dtype, "x")
        return
    made = values.make_array(numbers, dtype, "x")
    assert made.dtype == rounded.dtype
    assert made.flags.writeable
    np.testing.assert_array_equal(made, rounded)


@given(
    dtype=st.sampled_from(
        [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]
    ),
    numbers=st.lists(st.integers(-(1 << 65), 1 << 65) | st.integers(-300, 300), min_size=1),
)
def test_whole_numbers_fit_or_are_refused(dtype: str, numbers: list[int]) -> None:
    limits = np.iinfo(dtype)
    if limits.min <= min(numbers) and max(numbers) <= limits.max:
        made = values.make_array(numbers, dtype, "x")
        assert made.dtype == dtype
        assert made.dtype.char == np.dtype(dtype).char
        assert made.tolist() == numbers
        return
    with pytest.raises(InvalidInputError, match="does not fit"):
        values.make_array(numbers, dtype, "x")


@pytest.mark.parametrize(
    ("dtype", "value", "found"),
    [
        ("uint8", [[255, 0]], [[255, 0]]), ("uint64", [2**64 - 1], [2**64 - 1]),
        ("float32", [0.1], [float(np.float32(0.1))]), ("float32", [16777217], [16777216.0]),
        ("float64", [2**60], [2.0**60]), ("float32", [1, None], [1.0, None]),
        (None, [1, None], [1.0, None]), (None, ["a", "[1]"], ["a", "[1]"]), (None, [[]], [[]]),
        ("int64", [], []), ("bool", [True], [True]), ("datetime64[D]", [], []),
    ],
)  # fmt: skip
def test_what_fits_an_array_is_kept(dtype: str | None, value: Any, found: Any) -> None:
    assert got(post(serve(array_recorder(dtype)), INVOKE, {"x": value}))["values"] == found


@pytest.mark.parametrize(
    ("dtype", "datatype", "data"),
    [
        ("uint8", "INT64", [1]), ("uint8", "INT64", [300]), ("int8", "UINT8", [200]),
        ("int32", "INT64", [4294967303]), ("float32", "INT32", [16777217]),
        ("float32", "FP64", [1e39]), ("int64", "FP32", [1.0]), ("int64", "BOOL", [True]),
        ("bool", "INT8", [1]), ("float32", "BYTES", ["1.5"]), ("float64", "UINT64", [2**64 - 1]),
    ],
)  # fmt: skip
def test_a_declared_type_is_not_narrowed(dtype: str, datatype: str, data: Any) -> None:
    assert "x" in infer(serve(array_recorder(dtype)), tensor("x", datatype, [1], data))


@pytest.mark.parametrize(
    ("dtype", "datatype", "data"),
    [("float32", "INT32", [3]), ("float32", "FP64", [0.5]), ("int64", "INT8", [-3]),
     ("int8", "INT64", [-128]), ("int64", "UINT32", [7]), ("float64", "FP32", [0.5])],
)  # fmt: skip
def test_a_declared_type_of_the_same_kind_is_converted(
    dtype: str, datatype: str, data: Any
) -> None:
    found = infer(serve(array_recorder(dtype)), tensor("x", datatype, [1], data))
    assert (found["dtype"], found["values"]) == (dtype, data)


@pytest.mark.parametrize("datatype", ["INT64", "FP32", "BOOL", "BYTES", "UINT8"])
def test_an_array_without_elements_has_its_type_and_shape(datatype: str) -> None:
    found = infer(serve(array_recorder()), tensor("x", datatype, [0, 2], []))
    assert found["shape"] == [0, 2]


@pytest.mark.parametrize("text", ['["a","b"]', "[]", "1", "null", '{"a": 1}', '"a"', "", "é"])
def test_text_is_never_read_as_json(text: str) -> None:
    assert infer(serve(Recorder(list)), tensor("x", "BYTES", [1], [text])) == [text]
    assert infer(serve(Recorder(Any)), tensor("x", "BYTES", [1, 1], [text])) == [text]
    assert infer(serve(Recorder(str)), tensor("x", "BYTES", [1], [text])) == [text]


def test_an_element_is_json_if_the_tensor_says_so() -> None:
    sent = tensor("x", "BYTES", [1], ['["a", 1]'], content_type="json")
    assert infer(serve(Recorder(list)), sent) == ["a", 1]
    assert infer(serve(Recorder(dict)), tensor("x", "BYTES", [1], ['{"a": [1]}'])) == {"a": [1]}
    twice = tensor("x", "BYTES", [1], ['{"a": 1, "a": 2}'])
    assert "'a' twice" in infer(serve(Recorder(dict)), twice)


def test_bytes_that_are_no_text_are_refused() -> None:
    raw = base64.b64encode(b"\xff").decode()
    for kind in (list, str, np.ndarray):
        found = infer(
            serve(Recorder(kind)), tensor("x", "BYTES", [1], [raw], content_type="base64")
        )
        assert "not UTF-8" in found


class Length:
    def predict(self, x: bytes) -> int:
        return len(x)


@pytest.mark.parametrize(
    ("text", "length"),
    [("aGk=", 2), ("", 0), ("-_-_-_-_", 6), ("_w==", 1), ("_w", 1), ("+/+/", 3)],
)
def test_base64_and_its_form_for_addresses_are_read(text: str, length: int) -> None:
    assert len(decode_base64(text, "x")) == length
    app = serve(Length())
    assert post(app, INVOKE, {"x": text}).json == length
    for instance in (text, {"b64": text}, {"x": text}, {"x": {"b64": text}}):
        answer = post(app, V1, {"instances": [instance, {"b64": "aGk="}]})
        assert answer.json == {"predictions": [length, 2]}


@pytest.mark.parametrize(
    "text", ["data:image/png;base64,aGk=", "aGk", "a-k/", "aG k=", "aGk=\n", "é", "aGk=aGk=", "a"]
)
def test_other_text_is_not_base64(text: str) -> None:
    with pytest.raises(InvalidInputError, match="base64"):
        decode_base64(text, "x")
    answer = post(serve(Length()), INVOKE, {"x": text})
    assert (answer.status, "base64" in answer.json["error"]) == (400, True)
    assert "base64" in infer(
        serve(Recorder(list)), tensor("x", "BYTES", [1], [text], content_type="base64")
    )


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (INVOKE, b'"\xff"', 400), (INFER, b'{"inputs": "\xff"}', 400), (V1, b'"\xff"', 400),
        (INVOKE, b'"\\ud800"', 400), (INVOKE, b"[1e999]", 400), (INVOKE, b"\xef\xbb\xbf[1]", 400),
        (INVOKE, b'{"x": [1], "x": [2]}', 400), (V1, b'{"instances":[], "instances":[1]}', 400),
        (INFER, b'{"inputs": [], "inputs": []}', 400), (INVOKE, b'{"x": ["a:b:c"]}', 200),
        (INVOKE, b'{"instances": [{"a:": 1, "b": 2, "a:": 3}]}', 400),
        (INFER, b'{"inputs": [{"name": "x", "shape": [1], "datatype": "INT8", "data": [1],'
                b' "parameters": null}], "parameters": null, "outputs": null, "id": null}', 200),
    ],
)  # fmt: skip
def test_json_at_the_edge(path: str, body: bytes, status: int) -> None:
    answer = post(serve(Recorder(list)), path, body)
    assert answer.status == status, answer


def test_a_number_that_is_none_is_null_in_json() -> None:
    class Divider:
        def predict(self, x: Annotated[np.ndarray, "float64"]) -> Any:
            return {"array": x, "number": math.inf, "list": [math.nan, [1.5]]}

    answer = post(serve(Divider()), INVOKE, {"x": [None, 1]})
    assert answer.body == b'{"array":[null,1.0],"number":null,"list":[null,[1.5]]}'


def write_program(place: Path, code: str) -> Path:
    """Write the files of a packed image's program; its predictor is ``P`` of ``code``."""
    (place / "code").mkdir()
    (place / "code" / "p.py").write_text(code)
    (place / "predictor.json").write_text('{"module": "p", "class": "P"}')
    shutil.copy(values.__file__, place)
    return Path(shutil.copy(runner.__file__, place / "run.py"))


def test_recorded_inputs_are_replayed_as_they_were(tmp_path: Path) -> None:
    code = """
import numpy as np
class P:
    def load(self, directory): pass
    rows = np.array([[1, 2]], "int8")
    examples = [{"x": rows}, {"x": {"$array": 1}}, {"x": [float("nan"), b"a"]}]
    def predict(self, x): return repr(x)
"""
    program = write_program(tmp_path, code)
    reports = []
    for action in ("record", "replay"):
        command = [sys.executable, str(program), action, str(tmp_path)]
        subprocess.run(command, check=True, timeout=60)
        report = json.loads((tmp_path / "report.json").read_text())
        reports.append((report["inputs"], report["outputs"]))
        golden = [{"input": value, "output": None} for value in report["inputs"]]
        (tmp_path / "golden.json").write_text(json.dumps({"examples": golden}))
    assert reports[0] == reports[1]
    assert reports[0][1] == ["array([[1, 2]], dtype=int8)", "{'$array': 1}", "[nan, b'a']"]


def test_the_program_prints_only_json(tmp_path: Path) -> None:
    program = write_program(
        tmp_path,
        "class P:\n    def load(self, directory): pass\n"
        "    def predict(self, x: float): return [float('nan'), float(x), b'hi']\n",
    )
    for sent, code, printed in (
        ("0.5", 0, '[null, 0.5, {"b64": "aGk="}]\n'), ("NaN", 2, ""), ('{"x": 1, "x": 2}', 2, ""),
        ('{"$float": "nan"}', 2, ""), ("[", 2, ""),
    ):  # fmt: skip
        done = subprocess.run(
            [sys.executable, program], input=sent, capture_output=True, text=True,
            check=False, timeout=60,
        )  # fmt: skip
        assert (done.returncode, done.stdout) == (code, printed), done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "value",
    [{"$bytes": "aGk="}, {"$float": "nan"}, {"$frame": {"a": [1]}}, {"$object": {"a": 1}},
     {"$array": {"dtype": "int8", "shape": [1], "data": "AQ=="}}],
    ids=lambda value: str(*value),
)  # fmt: skip
def test_a_clients_keys_are_not_danlus(value: Any) -> None:
    assert got(post(serve(Recorder(dict)), INVOKE, {"x": value})) == value
    assert got(post(serve(Recorder(list)), V1, {"instances": [value]})) == [value]
    for kind in (bytes, float, np.ndarray):
        assert post(serve(Recorder(kind)), INVOKE, {"x": value}).status == 400
    # What danlu records comes back as it was, also if it looks like danlu's own.
    recorded = json.loads(json.dumps(values.encode_value({"x": value})))
    assert values.decode_value(recorded) == {"x": value}


# -- forms of /invocations and V1 -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "reason"),
    [
        (INVOKE, {"inputs": [1], "instances": [2]}, "only one of"),
        (INVOKE, {"inputs": [1], "zzz": 2}, "'zzz'"),
        (INVOKE, {"inputs": [1], "params": {"t": 1}}, "no params"),
        (INVOKE, {"dataframe_split": {"columns": ["a"], "data": [[1]], "zz": 1}}, "'zz'"),
        (INVOKE, {"dataframe_split": {"columns": ["a"], "data": [[1, 2]]}}, "list of 1 values"),
        (INVOKE, {"dataframe_split": {"columns": [None], "data": [[1]]}}, "must be texts"),
        (INVOKE, {"dataframe_split": {"columns": ["a"], "data": [[1]], "index": []}}, "index"),
        (INVOKE, {"dataframe_records": [[1]]}, "must be an object"),
        (INVOKE, {"dataframe_records": {}}, "must be a list"),
        (V1, {"instances": [1], "signature_name": "other"}, "'signature_name'"),
        (V1, {"instances": {"a": 1}}, "instances"),
    ],
)
def test_forms_that_are_not_understood_are_refused(path: str, body: Any, reason: str) -> None:
    answer = post(serve(Recorder(list)), path, body)
    assert (answer.status, reason in answer.json["error"]) == (400, True), answer


def test_v1_takes_the_only_signature() -> None:
    body = {"instances": [1], "signature_name": "serving_default"}
    assert got(post(serve(Recorder(list)), V1, body)) == [1]


class Two:
    def predict(self, text: str, count: int = 1) -> str:
        return text * count


def test_instances_of_scalar_parameters_are_inputs_of_their_own() -> None:
    app = serve(Two())
    rows = ["a", "b"]
    objects = [{"text": "a", "count": 2}, {"text": "b"}]
    for path, body, found in (
        (V1, {"instances": rows}, rows),
        (V1, {"instances": objects}, ["aa", "b"]),
        (V1, {"instances": []}, []),
        (INVOKE, {"dataframe_records": objects[:1]}, ["aa"]),
        (INVOKE, {"dataframe_split": {"columns": ["count", "text"], "data": [[3, "c"]]}}, ["ccc"]),
        (INVOKE, {"inputs": rows}, rows),
        (INVOKE, {"inputs": "a"}, "a"),
    ):
        assert post(app, path, body).json == {"predictions": found}
    assert post(app, V1, {"instances": ["a", 1]}).status == 400
    assert post(app, V1, {"instances": [{"text": "a", "zz": 1}]}).status == 400


def test_a_result_with_predictions_is_the_answer() -> None:
    class Classifier:
        def predict(self, x: list) -> dict[str, Any]:  # type: ignore[type-arg]
            return {"predictions": x, "probabilities": [0.5]}

    for path in (V1, INVOKE):
        found = post(serve(Classifier()), path, {"instances": [1]}).json
        assert found == {"predictions": [1], "probabilities": [0.5]}


# -- tables ---------------------------------------------------------------------------------------

ROWS = [[1, 2], [3, 4]]


def send_table(app: ServerApp, columns: list[str], rows: list[list[Any]]) -> list[Answer]:
    """Send a table in all forms that have names."""
    records = [dict(zip(columns, row, strict=True)) for row in rows]
    by_name = {name: [row[place] for row in rows] for place, name in enumerate(columns)}
    tensors = [tensor(name, "INT64", [len(rows)], data) for name, data in by_name.items()]
    text = "\n".join(",".join(map(str, row)) for row in [columns, *rows])
    return [
        post(app, INVOKE, {"dataframe_split": {"columns": columns, "data": rows}}),
        post(app, INVOKE, {"dataframe_records": records}),
        post(app, INVOKE, {"instances": records}),
        post(app, INVOKE, {"inputs": by_name}),
        post(app, INVOKE, {"x": records}),
        post(app, V1, {"instances": records}),
        post(app, INFER, {"inputs": tensors}),
        post(app, INVOKE, text.encode(), content_type="text/csv; header=present"),
    ]


def read_answer(answer: Answer) -> Any:
    if answer.status != 200:
        return answer.status
    if "outputs" in answer.json:
        return json.loads(answer.json["outputs"][0]["data"][0])
    return answer.json.get("predictions", answer.json)["got"]


class Shown(Recorder):
    """Always an object, so that its output is one JSON text."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        shown = self.predict
        self.predict = lambda x: {"got": {"it": shown(x)["got"]}}
        self.predict.__annotations__ = shown.__annotations__


@pytest.mark.parametrize("kind", [list, Annotated[np.ndarray, "int64"]], ids=["list", "array"])
def test_columns_are_matched_by_name(kind: Any) -> None:
    app = serve(Shown(kind, ["a", "b"]))
    expected: Any = ROWS
    if kind is not list:
        expected = {"dtype": "int64", "shape": [2, 2], "values": ROWS}
    turned = [row[::-1] for row in ROWS]
    for columns, rows in ((["a", "b"], ROWS), (["b", "a"], turned)):
        for answer in send_table(app, columns, rows):
            assert read_answer(answer) == {"it": expected}, answer
    for columns, rows in ((["a", "z"], ROWS), (["a"], [[1]]), (["a", "b", "z"], [[1, 2, 3]])):
        for answer in send_table(app, columns, rows):
            assert answer.status == 400
            assert "column" in answer.json["error"] or "input 'z'" in answer.json["error"], answer
    for width in (1, 3):
        for path, key in ((INVOKE, "x"), (INVOKE, "instances"), (V1, "instances")):
            assert post(app, path, {key: [[1] * width]}).status == 400


def test_a_table_for_rows_without_names_is_in_the_order_of_the_first_record() -> None:
    app = serve(Recorder(list))
    records = [{"a": 1, "b": 2}, {"b": 4, "a": 3}]
    assert got(post(app, INVOKE, {"dataframe_records": records})) == ROWS
    assert got(post(app, V1, {"instances": records})) == records


def test_booleans_are_numbers_for_columns_that_take_them() -> None:
    app = serve(Shown(Annotated[np.ndarray, "float32"], {"a": None, "b": {"booleans": True}}))
    expected = {"it": {"dtype": "float32", "shape": [2, 2], "values": [[1.0, 1.0], [2.0, 0.0]]}}
    for columns, rows in ((["b", "a"], [[True, 1], [False, 2]]), (["a", "b"], [[1, 1], [2, 0]])):
        for answer in send_table(app, columns, rows)[:6]:
            assert read_answer(answer) == expected, answer
    booleans = tensor("b", "BOOL", [2], [True, False])
    answer = post(app, INFER, {"inputs": [booleans, tensor("a", "INT64", [2, 1], [1, 2])]})
    assert read_answer(answer) == expected
    assert post(app, INVOKE, {"x": [{"a": True, "b": True}]}).status == 400


def test_arrays_by_name_reach_a_predictor_of_such() -> None:
    columns = {"a": {"dtype": "float32", "shape": [None, 2]}, "b": {"dtype": "int64"}}

    class Named:
        def __init__(self) -> None:
            self.columns = columns

        def predict(self, arrays: dict) -> dict[str, Any]:  # type: ignore[type-arg]
            return {name: array * 2 for name, array in arrays.items()}

    app = serve(Named())
    expected = {"a": [[2.0, 4.0]], "b": [6]}
    row = {"a": [1, 2], "b": 3}
    forms: list[tuple[str, Any]] = [
        (INVOKE, {"arrays": {"a": [[1, 2]], "b": [3]}}),
        (INVOKE, {"inputs": {"a": [[1, 2]], "b": [3]}}),
        (INVOKE, {"instances": [row]}),
        (V1, {"instances": [row]}),
    ]
    for path, body in forms:
        found = post(app, path, body).json
        assert found.get("predictions", found) == expected
    answer = post(
        app,
        INFER,
        {"inputs": [tensor("b", "INT64", [1], [3]), tensor("a", "FP32", [1, 2], [1, 2])]},
    )
    assert [(item["name"], item["datatype"]) for item in answer.json["outputs"]] == [
        ("a", "FP32"), ("b", "INT64"),
    ]  # fmt: skip
    for wrong in ({"a": [[1, 2]]}, {"a": [[1]], "b": [1]}, {"a": [[1, 2]], "b": [1], "c": [1]}):
        assert post(app, INVOKE, {"inputs": wrong}).status == 400


@pytest.mark.real
@pytest.mark.usefixtures("pandas_path")
def test_a_data_frame_gets_the_names_and_types_of_its_columns() -> None:
    pandas = pytest.importorskip("pandas")
    columns = {"a": "float64", "b": "int64", "t": {"dtype": "str", "optional": True}}
    app = serve(Shown(pandas.DataFrame, columns))
    expected = {"columns": ["a", "b"], "dtypes": ["float64", "int64"],
                "rows": [[1, 2], [3, 4]], "index": ["0", "1"]}  # fmt: skip
    for answer in send_table(app, ["b", "a"], [[2, 1], [4, 3]]):
        found = read_answer(answer)
        assert found == {"it": expected} or (answer.status, "INT64") == (200, found), answer
    rows: list[list[Any]] = [[1.5, 2.5], [1, None], ["1", 2], [1, True]]
    for cells in rows:
        split = {"columns": ["a", "b"], "data": [cells]}
        assert post(app, INVOKE, {"dataframe_split": split}).status == 400, cells
    texts = {"columns": ["t", "a", "b"], "data": [["[1]", None, 2], [None, 1, 2]]}
    found = read_answer(post(app, INVOKE, {"dataframe_split": texts}))["it"]
    assert found["rows"] == [[None, 2, "[1]"], [1.0, 2, None]]
    assert post(app, INVOKE, {"instances": [[1, 2, "x"]]}).status == 200
    assert post(app, INVOKE, {"instances": [[1, 2]]}).status == 400
    # Undeclared columns are as pandas finds them, but no number changes.
    app = serve(Shown(pandas.DataFrame))
    for first, second in ((2**53 + 1, None), (2**53 + 1, 0.5), (2**64, -1)):
        split = {"columns": ["a"], "data": [[first], [second]]}
        assert post(app, INVOKE, {"dataframe_split": split}).status == 400, (first, second)


@pytest.mark.real
@pytest.mark.usefixtures("pandas_path")
def test_a_recorded_frame_keeps_its_names_and_types() -> None:
    pandas = pytest.importorskip("pandas")

    class Frames:
        def predict(self, frame: Any) -> Any:
            return frame[["b"]] * 2

    Frames.predict.__annotations__ = {"frame": pandas.DataFrame, "return": pandas.DataFrame}
    example = pandas.DataFrame({"b": np.array([1, 2], "int32"), "a": ["x", "y"]})
    recorded = json.loads(json.dumps(values.encode_value(example)))
    output = json.loads(json.dumps(values.encode_value(Frames().predict(example))))
    app = serve(Frames(), [{"input": recorded, "output": output}])
    described = app.model.describe()
    assert described["inputs"] == [
        {"name": "b", "datatype": "INT32", "shape": [-1]},
        {"name": "a", "datatype": "BYTES", "shape": [-1]},
    ]
    assert described["outputs"] == [{"name": "b", "datatype": "INT32", "shape": [-1]}]
    shown = app.model.encode_example()
    assert shown == [{"b": 1, "a": "x"}, {"b": 2, "a": "y"}]
    assert post(app, INVOKE, shown).json == [{"b": 2}, {"b": 4}]
    assert post(app, V1, {"instances": shown}).json == {"predictions": [{"b": 2}, {"b": 4}]}


@pytest.mark.real
@pytest.mark.usefixtures("pandas_path")
def test_a_packed_example_keeps_the_names_of_a_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    example = {"X": pandas.DataFrame({"b": np.array([1], "int8"), "a": ["x"]})}
    path = packing._save_example(example, tmp_path)
    assert json.loads(path.read_text()) == {"X": [{"b": 1, "a": "x"}]}


# -- content types and codings --------------------------------------------------------------------


def test_csv_and_arrays_in_and_out() -> None:
    app = serve(Recorder(list, ["a", "b"]))
    for kind, text, expected in (
        ("text/csv", "1,2\n3,\n", [[1, 2], [3, None]]),
        ("text/csv", "b,a\r\n2,1.5\r\n", [[1.5, 2]]),
        ("text/csv; header=absent", 'x,"y, z"\n', [["x", "y, z"]]),
        ("text/csv; charset=utf-8; header=present", "a,b\n1,1_0\n", [[1, "1_0"]]),
        ("text/csv", "a,b\ntrue,007\n,-1\n", [[True, 7], [None, -1]]),
    ):
        assert got(post(app, INVOKE, text.encode(), content_type=kind)) == expected
    for kind, body, status in (
        ("text/csv", b"x,y\n1,2\n", 400), ("text/csv", b"1,2\n3\n", 400),
        ("text/csv", b"\xff", 400), ("text/csv", b"1e999,1", 400), ("text/csv", b"9" * 5000, 400),
        ("text/csv; header=maybe", b"1,2", 415),
        ("application/x-npy", b"junk", 400), ("text/plain", b"1", 415),
        ("application/json; format=pandas-split", b"[]", 415),
        ("application/json; charset=latin-1", b"[]", 415),
    ):  # fmt: skip
        assert post(app, INVOKE, body, content_type=kind).status == status, kind

    class Double:
        def predict(self, x: Annotated[np.ndarray, "float32", (None, 2)]) -> Any:
            return x * 2

    app = serve(Double())
    buffer = io.BytesIO()
    np.save(buffer, np.array([[1, 2]], "float32"))
    headers = {"content_type": "application/x-npy", "accept": "application/x-npy"}
    found = post(app, INVOKE, buffer.getvalue(), **headers)
    assert found.headers["content-type"] == "application/x-npy"
    array = np.load(io.BytesIO(found.body))
    assert (array.dtype, array.tolist()) == (np.float32, [[2, 4]])
    found = post(
        app, INVOKE, b"1,0.5\n3,4\n", content_type="text/csv", accept="text/csv, */*;q=0.1"
    )
    assert (found.headers["content-type"], found.body) == ("text/csv", b"2.0,1.0\n6.0,8.0\n")
    pickled = io.BytesIO()
    np.save(pickled, np.array([{}]))
    assert post(app, INVOKE, pickled.getvalue(), content_type="application/x-npy").status == 400
    assert post(app, INVOKE, [[1, 2]], accept="image/png").status == 406
    assert post(app, INVOKE, [[1, 2]], accept="*/*").headers["content-type"] == "application/json"


def test_bodies_are_compressed_both_ways() -> None:
    app = serve(Recorder(list), options=ServerOptions(max_body=100_000))
    body = json.dumps({"x": list(range(10_000))}).encode()
    for coding, packed in (("gzip", gzip.compress(body)), ("deflate", zlib.compress(body))):
        answer = post(
            app, INVOKE, packed, content_encoding=coding, accept_encoding="br, gzip;q=0.5"
        )
        assert answer.headers["content-encoding"] == "gzip"
        assert json.loads(gzip.decompress(answer.body)) == {"got": list(range(10_000))}
    for accepted in ("", "br", "gzip;q=0"):
        answer = post(app, INVOKE, body, accept_encoding=accepted)
        assert "content-encoding" not in answer.headers
        assert answer.headers["vary"] == "accept-encoding"
    bomb = gzip.compress(b" " * 10_000_000)
    for packed, coding, status in (
        (bomb, "gzip", 413), (gzip.compress(body)[:-9], "gzip", 400), (b"junk", "gzip", 400),
        (gzip.compress(body) + b"x", "gzip", 400), (body, "br", 415),
    ):  # fmt: skip
        assert post(app, INVOKE, packed, content_encoding=coding).status == status


def test_pages_of_other_origins_are_answered_if_allowed() -> None:
    def ask_from(app: ServerApp, method: str, origin: str) -> Answer:
        headers = {"origin": origin, "access-control-request-method": "POST"}
        return anyio.run(ask, app, method, INVOKE, {"x": [1]}, headers)

    closed = serve(Recorder(list))
    assert ask_from(closed, "OPTIONS", "https://a.example").status == 405
    assert (
        "access-control-allow-origin" not in ask_from(closed, "POST", "https://a.example").headers
    )
    app = serve(Recorder(list), options=ServerOptions(origins=("https://a.example",)))
    preflight = ask_from(app, "OPTIONS", "https://a.example")
    assert preflight.status == 204
    assert preflight.headers["access-control-allow-origin"] == "https://a.example"
    assert "content-type" in preflight.headers["access-control-allow-headers"]
    assert "access-control-allow-origin" not in ask_from(app, "POST", "https://b.example").headers
    every = serve(Recorder(list), options=ServerOptions(origins=("*",)))
    assert (
        ask_from(every, "POST", "https://b.example").headers["access-control-allow-origin"] == "*"
    )


def test_mlflows_paths_are_there() -> None:
    app = serve(Recorder(list))
    for path in ("/ping", "/health", "/version"):
        assert anyio.run(ask, app, "GET", path).status == 200


def test_a_predictor_may_refuse_an_input() -> None:
    class Refused(ValueError):
        status_code = 422

    class Picky:
        def predict(self, x: int) -> int:
            raise Refused("not that one")

    answer = post(serve(Picky()), INVOKE, {"x": 1})
    assert (answer.status, answer.json) == (422, {"error": "not that one"})


# -- batches --------------------------------------------------------------------------------------


def show_rows(rows: Any) -> list[str]:
    """Return each row by itself."""
    return [repr(row) for row in rows]


def show_array(rows: Any) -> list[str]:
    """Return rows as NumPy makes them of a list: each gets the type of all, as in most models."""
    try:
        return show_rows(np.asarray(rows).tolist())
    except ValueError:  # lists of different lengths
        return show_rows(rows)


def batched(kind: Any, show: Any = show_array, **attributes: Any) -> ServerApp:
    """A predictor whose example can be batched."""
    predictor = Recorder(kind)

    def predict(x: Any) -> Any:
        return show(x)

    predict.__annotations__ = {"x": kind}
    predictor.predict = predict
    for name, value in attributes.items():
        setattr(predictor, name, value)
    example = [[1, 2], [3, 4]]
    return serve(predictor, [{"input": example, "output": show(example)}])


def test_lists_are_not_joined_unless_the_predictor_says_so() -> None:
    assert batched(np.ndarray).model.batches
    assert not batched(list).model.batches
    assert batched(list, batches=True).model.batches


CELLS = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**64), 2**64), st.floats(), st.text(max_size=3),
    st.sampled_from([0, 1, 0.5, "3", "[1]", 2**53 + 1]),
)  # fmt: skip
INTEGERS = st.lists(st.integers(0, 3), min_size=2, max_size=2)
ROW_LISTS = st.lists(
    st.lists(CELLS, min_size=2, max_size=2) | st.dictionaries(st.sampled_from("ab"), CELLS)
    | INTEGERS | st.lists(st.floats(0, 3), min_size=2, max_size=2),
    min_size=1, max_size=3,
)  # fmt: skip
TENSORS = st.builds(
    lambda datatype, rows: tensor("x", datatype, [len(rows), 2], rows),
    st.sampled_from(["FP32", "FP64", "INT8", "INT64"]),
    st.lists(INTEGERS, min_size=1, max_size=3),
)
REQUESTS = st.lists(
    st.tuples(st.sampled_from([INVOKE, V1]), st.fixed_dictionaries({"instances": ROW_LISTS}))
    | st.tuples(st.just(INFER), TENSORS.map(lambda item: {"inputs": [item]})),
    min_size=2, max_size=6,
)  # fmt: skip


@pytest.fixture(scope="module")
def batching() -> list[ServerApp]:
    apps = [
        batched(np.ndarray),
        batched(Annotated[np.ndarray, "float32", (None, 2)]),
        batched(Annotated[np.ndarray, "int8"]),
        batched(list),
        batched(list, show_rows, batches=True),
        batched(list, columns=["a", "b"]),
    ]
    assert [app.model.batches for app in apps] == [True, True, True, False, True, False]
    return apps


@settings(deadline=None, max_examples=150)
@given(requests=REQUESTS, place=st.integers(0, 5))
def test_requests_together_get_the_bytes_that_each_gets_alone(
    batching: list[ServerApp], requests: list[Any], place: int
) -> None:
    app = batching[place]

    async def send_all() -> list[Answer]:
        answers: list[Any] = [None] * len(requests)

        async def send(number: int) -> None:
            answers[number] = await ask(app, "POST", *requests[number])

        async with anyio.create_task_group() as group:
            for number in range(len(requests)):
                group.start_soon(send, number)
        return answers

    async def send_each() -> list[Answer]:
        return [await ask(app, "POST", path, body) for path, body in requests]

    alone, together = anyio.run(send_each), anyio.run(send_all)
    assert [(item.status, item.body) for item in together] == [
        (item.status, item.body) for item in alone
    ]
    assert {item.status for item in alone} <= {200, 400}


@settings(deadline=None)
@given(
    value=st.recursive(
        CELLS | st.binary(max_size=3),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["$bytes", "$array", "$object", "a"]), inner, max_size=2
            )
        ),
    )
)
def test_what_is_recorded_comes_back(value: Any) -> None:
    recorded = json.loads(json.dumps(values.encode_value(value)))
    assert repr(values.decode_value(recorded)) == repr(value)


def test_an_input_with_one_unknown_parameter_is_refused() -> None:
    schema = values.describe_predictor(Recorder(dict))
    assert convert_input({"a": 1}, schema) == {"x": {"a": 1}}
    with pytest.raises(InvalidInputError, match="object with x"):
        convert_input({"x": {}, "y": 1}, schema)


@pytest.mark.parametrize(
    ("value", "about", "dtype"),
    [
        ([[0.5, 1.0]], {"type": "tensor"}, "float32"),
        ([[1, 2]], {"type": "tensor"}, "int64"),
        ([[0.5]], {"type": "tensor", "dtype": "float64"}, "float64"),
        (np.array([0.5]), {"type": "tensor"}, "float64"),
        ([[0.5, 1.0]], {"type": "array"}, "float64"),
    ],
)
def test_fractions_become_a_tensor_as_in_torch(
    value: Any, about: dict[str, str], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = types.SimpleNamespace(from_numpy=lambda array: array)
    monkeypatch.setitem(sys.modules, "torch", torch)
    assert convert_input({"x": value}, {"inputs": {"x": about}})["x"].dtype == dtype
