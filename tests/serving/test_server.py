"""The model server: protocols, batches, overload, and what clients get wrong."""

from __future__ import annotations

import contextlib
import json
import struct
import threading
from functools import partial
from typing import Annotated, Any

import anyio
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from danlu.serving import predictor_values as values
from danlu.serving.server.app import ServerApp, ServerOptions
from danlu.serving.server.batching import QueueFull, RequestBatcher, ReturningRows, TooSlow
from danlu.serving.server.model import ServedModel
from danlu.serving.server.tensors import DTYPES, InvalidRequest, decode_request, make_output
from tests.serving.asgi import ask, get, post

NONE: dict[str, int] = {}
INFER = "/v2/models/m/infer"


class Double:
    """Batchable: every row by itself."""

    def load(self, directory: str) -> None: ...

    def predict(self, x: Annotated[np.ndarray, "float32", (None, 2)]) -> dict[str, Any]:
        if x.size and x[0, 0] == 13:
            raise RuntimeError("unlucky")
        return {"y": 2 * x, "first": x[:, 0]}


class Mean:
    """Not batchable: the rows of a call matter to each other."""

    def predict(self, x: np.ndarray) -> np.ndarray:
        mean: np.ndarray = x - x.mean(axis=0)
        return mean


class Mixed:
    def predict(self, text: str, count: int = 2, table: dict[str, int] = NONE) -> dict[str, Any]:
        return {"text": text * count, "table": table, "raw": b"\xff", "none": None}


class Held(Double):
    """Once it is ``watched``, notes the rows of its calls and waits in each."""

    def __init__(self) -> None:
        self.watched = False
        self.rows: list[int] = []
        self.started, self.go_on = threading.Event(), threading.Event()

    def predict(self, x: Annotated[np.ndarray, "float32", (None, 2)]) -> dict[str, Any]:
        if self.watched:
            self.rows.append(len(x))
            self.started.set()
            self.go_on.wait(60)
        return super().predict(x)


DEFAULTS = ServerOptions()


def load(predictor: Any, example: Any, options: ServerOptions = DEFAULTS) -> ServerApp:
    """An application that has loaded ``predictor`` with one golden example."""

    def model() -> ServedModel:
        schema = values.describe_predictor(predictor)
        output = predictor.predict(**values.convert_input(example, schema))
        golden = {"input": values.encode_value(example), "output": values.encode_value(output)}
        made = ServedModel(predictor, {"examples": [golden]}, name="m")
        made.warm_up()
        return made

    app = ServerApp(model, options)
    app.start()
    return app


@pytest.fixture
def double() -> ServerApp:
    return load(Double(), [[1.0, 2.0], [3.0, 4.0]])


def tensor(name: str, datatype: str, shape: list[int], data: Any) -> dict[str, Any]:
    return {"name": name, "datatype": datatype, "shape": shape, "data": data}


def test_open_inference_protocol(double: ServerApp) -> None:
    assert get(double, "/v2").json["extensions"] == ["binary_tensor_data"]
    for path in ("/v2/health/live", "/v2/health/ready", "/v2/models/m/ready", "/ping"):
        assert get(double, path).status == 200
    about = get(double, "/v2/models/m/versions/1").json
    assert about["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, 2]}]
    assert about["outputs"][0] == {"name": "y", "datatype": "FP32", "shape": [-1, 2]}
    request = {"id": "7", "inputs": [tensor("x", "FP32", [1, 2], [[1.5, 2]])]}
    answer = post(double, INFER, request)
    assert answer.json == {
        "model_name": "m", "model_version": "1", "id": "7",
        "outputs": [tensor("y", "FP32", [1, 2], [3.0, 4.0]), tensor("first", "FP32", [1], [1.5])],
    }  # fmt: skip


def test_binary_tensors(double: ServerApp) -> None:
    data = struct.pack("<2e", 1.5, 2)
    head = json.dumps(
        {
            "inputs": [
                {"name": "x", "datatype": "FP16", "shape": [1, 2],
                 "parameters": {"binary_data_size": len(data)}}
            ],
            "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
        }
    ).encode()  # fmt: skip
    answer = post(double, INFER, head + data, inference_header_content_length=str(len(head)))
    length = int(answer.headers["inference-header-content-length"])
    assert json.loads(answer.body[:length])["outputs"] == [
        {"name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    ]
    assert np.frombuffer(answer.body[length:], "<f4").tolist() == [3.0, 4.0]


def test_text_bytes_and_objects() -> None:
    app = load(Mixed(), {"text": "a"})
    answer = post(
        app, INFER,
        {"inputs": [tensor("text", "BYTES", [1], ["é"]), tensor("count", "INT64", [1], [2]),
                    tensor("table", "BYTES", [1], ['{"a": 1}'])]},
    )  # fmt: skip
    outputs = {item["name"]: item for item in answer.json["outputs"]}
    assert outputs["text"]["data"] == ["éé"]
    assert outputs["table"] == {
        **tensor("table", "BYTES", [1], ['{"a": 1}']), "parameters": {"content_type": "json"},
    }  # fmt: skip
    assert outputs["raw"]["data"] == ["/w=="]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/models/m:predict", {"instances": [[1, 2], [3, 4]]}),
        ("/v1/models/m:predict", {"instances": [{"x": [1, 2]}, {"x": [3, 4]}]}),
        ("/invocations", {"inputs": {"x": [[1, 2], [3, 4]]}}),
        ("/invocations", {"instances": [[1, 2], [3, 4]]}),
        ("/invocations", {"dataframe_split": {"columns": ["a", "b"], "data": [[1, 2], [3, 4]]}}),
        ("/invocations", {"dataframe_records": [{"a": 1, "b": 2}, {"a": 3, "b": 4}]}),
    ],
)
def test_other_protocols(double: ServerApp, path: str, body: Any) -> None:
    answer = post(double, path, body)
    assert answer.json == {"predictions": {"y": [[2, 4], [6, 8]], "first": [1, 3]}}


def test_an_input_as_it_is(double: ServerApp) -> None:
    assert post(double, "/invocations", {"x": [[1, 2]]}).json == {"y": [[2, 4]], "first": [1]}


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        (INFER, b"{", 400, "invalid request"),
        (INFER, {"inputs": []}, 400, "'x' is missing"),
        (INFER, {"inputs": [tensor("z", "FP32", [1], [1])]}, 400, "no input 'z'"),
        (INFER, {"inputs": [tensor("x", "FP31", [1], [1])]}, 400, "'FP31'"),
        (INFER, {"inputs": [tensor("x", "FP32", [1, 3], [1, 2])]}, 400, "shape [1, 3]"),
        (INFER, {"inputs": [tensor("x", "FP32", [-1, 2], [1, 2])]}, 400, "invalid shape"),
        (INFER, {"inputs": [tensor("x", "FP32", [1, 1], [1])]}, 400, "must have the shape"),
        (INFER, {"inputs": [tensor("x", "INT8", [1, 2], [1, 300])]}, 400, "does not fit in int8"),
        (INFER, {"inputs": [tensor("x", "FP32", [1, 2], ["a", "b"])]}, 400, "not text"),
        (INFER, {"inputs": [tensor("x", "FP32", [1, 2], [1, 2])], "outputs": [{"name": "q"}]},
         400, "no output 'q'"),
        (INFER, {"inputs": [tensor("x", "FP32", [0, 1 << 40, 1 << 40], [])]}, 400, "invalid shape"),
        (INFER, b"[" * 100_000, 400, "invalid request"),
        ("/v1/models/m:predict", {"instance": 1}, 400, "instances"),
        ("/invocations", b"nan", 400, "invalid JSON"),
        ("/v2/models/other/infer", {}, 404, "the model here is m"),
        ("/v2/health/live", {}, 405, "use GET"),
        (INFER, {"inputs": [tensor("x", "FP32", [1, 2], [13, 2])]}, 500, "RuntimeError: unlucky"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(
    double: ServerApp, path: str, body: Any, status: int, message: str
) -> None:
    answer = post(double, path, body)
    assert (answer.status, message in answer.json["error"]) == (status, True), answer


@pytest.mark.parametrize(
    ("value", "datatype"),
    [(np.array([1], ">f4"), "FP32"), (np.array(1, "float16"), "FP16"), (np.float16(1), "FP64"),
     (np.array(["a"]), "BYTES"), ([[1], [2, 3]], "BYTES"), ([True], "BOOL")],
)  # fmt: skip
def test_types_of_outputs(value: Any, datatype: str) -> None:
    assert make_output("y", value).datatype == datatype


def test_a_result_that_has_no_form_in_json_is_named() -> None:
    class Thing:
        def predict(self, x: int) -> Any:
            return object() if x else 0

    app = load(Thing(), {"x": 0})
    for path, body in (
        ("/invocations", {"x": 1}),
        (INFER, {"inputs": [tensor("x", "INT64", [1], [1])]}),
    ):
        answer = post(app, path, body)
        assert (answer.status, "predict returned a object" in answer.json["error"]) == (500, True)


def test_large_bodies_are_refused() -> None:
    app = load(Double(), [[1.0, 2.0]], ServerOptions(max_body=10))
    assert post(app, INFER, b" " * 11).status == 413
    assert post(app, INFER, b"", content_length="11").status == 413


def test_only_a_predictor_whose_rows_are_independent_is_batched(double: ServerApp) -> None:
    assert double.model.batches
    assert not load(Mean(), [[1.0, 2.0], [3.0, 4.0]]).model.batches
    assert not load(Mixed(), {"text": "a"}).model.batches


@pytest.mark.parametrize(
    ("later", "calls"), [((2, 3, 4), [1, 3]), ((13, 5), [1, 2, 1, 1])], ids=["good", "one is bad"]
)
def test_requests_that_wait_are_one_call_and_one_bad_request_fails_alone(
    later: tuple[int, ...], calls: list[int]
) -> None:
    predictor = Held()
    app = load(predictor, [[1.0, 2.0], [3.0, 4.0]])
    predictor.watched = True
    answers: dict[int, Any] = {}

    async def send(number: int) -> None:
        answers[number] = await ask(app, "POST", "/invocations", {"x": [[float(number), 0.0]]})

    async def count_waiting() -> float:
        text = (await ask(app, "GET", "/metrics")).body.decode()
        return float(text.partition("\ndanlu_waiting_requests ")[2].partition("\n")[0])

    async def run() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(send, 1)
            await anyio.to_thread.run_sync(predictor.started.wait)
            for number in later:
                group.start_soon(send, number)
            while await count_waiting() < len(later):
                await anyio.lowlevel.checkpoint()
            predictor.go_on.set()

    anyio.run(run)
    assert predictor.rows == calls
    for number in (1, *later):
        if number == 13:
            assert answers[number].status == 500
        else:
            assert answers[number].json["first"] == [float(number)]


def make_batcher(call: Any, *, timeout: float = 60, on_stuck: Any = lambda: None) -> RequestBatcher:
    return RequestBatcher(
        call, merge=list, split=lambda result, counts: [result] * len(counts), max_rows=4,
        max_waiting=2, timeout=timeout, observe=lambda rows, seconds: None, on_stuck=on_stuck,
    )  # fmt: skip


def send_in_groups(wait: float) -> list[int]:
    """Return the rows of each call if two requests are answered together and one comes back first.

    ``wait`` is for how many seconds the next call waits for the other.
    """
    calls: list[int] = []
    started, go_on = threading.Event(), threading.Event()

    def call(arguments: Any) -> Any:
        calls.append(len(arguments) if isinstance(arguments, list) else 1)
        started.set()
        if calls == [1]:
            go_on.wait(60)
        return arguments

    batcher = make_batcher(call)
    batcher.returning.find_wait = lambda now: wait  # type: ignore[method-assign]

    async def run() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(partial(batcher.submit, 1, key="k"))
            await anyio.to_thread.run_sync(started.wait)
            async with anyio.create_task_group() as pair:
                for number in (2, 3):
                    pair.start_soon(partial(batcher.submit, number, key="k"))
                while batcher.waiting < 2:
                    await anyio.lowlevel.checkpoint()
                go_on.set()
            group.start_soon(partial(batcher.submit, 4, key="k"))
            while batcher.waiting < 1 and len(calls) < 3:
                await anyio.lowlevel.checkpoint()
            if wait < 1:
                while len(calls) < 3:
                    await anyio.lowlevel.checkpoint()
            else:
                for _ in range(50):
                    await anyio.lowlevel.checkpoint()
            await batcher.submit(5, key="k")

    anyio.run(run)
    return calls


def test_after_a_batch_the_next_call_waits_for_as_many_rows() -> None:
    assert send_in_groups(60) == [1, 2, 2]


def test_a_call_waits_for_rows_that_do_not_come_back_for_a_limited_time() -> None:
    assert send_in_groups(0.001) == [1, 2, 1, 1]


@pytest.mark.parametrize(
    ("sizes", "returned", "is_worth_it"),
    [((1, 16), 16, True), ((16, 16), 16, False), ((1, 16), 8, False)],
    ids=["they come back", "the cost is not known", "others do not come back"],
)
def test_rows_are_waited_for_if_they_come_back_in_less_than_the_fixed_cost_of_a_call(
    sizes: tuple[int, int], returned: int, is_worth_it: bool
) -> None:
    """Calls take 5 ms and 0.2 ms for each row."""
    rows = ReturningRows()
    now = 0.0
    for size in sizes * 10:
        now += 0.1
        rows.record_call("k", size, 0.005 + 0.0002 * size, now)
        rows.record_arrival(min(size, returned), now + 0.003)
        rows.record_arrival(99, now + 0.004)
    wait = rows.find_wait(now)
    assert wait == (pytest.approx(0.75 * 0.005) if is_worth_it else 0)


def test_the_cost_of_calls_of_another_shape_is_forgotten() -> None:
    rows = ReturningRows()
    for number, (key, size) in enumerate([("k", 1), ("k", 16)] * 10 + [("other", 16)]):
        rows.record_call(key, size, 0.005 + 0.0002 * size, number)
        rows.record_arrival(size, number)
    assert rows.find_wait(number) == 0


def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    started, go_on = threading.Event(), threading.Event()

    def call(arguments: Any) -> Any:
        started.set()
        go_on.wait(60)
        return arguments

    batcher = make_batcher(call)

    async def run() -> None:
        async with anyio.create_task_group() as group:
            group.start_soon(batcher.submit, 1)
            await anyio.to_thread.run_sync(started.wait)
            for number in (2, 3):
                group.start_soon(batcher.submit, number)
            while batcher.waiting < 2:
                await anyio.lowlevel.checkpoint()
            with pytest.raises(QueueFull) as refused:
                await batcher.submit(4)
            assert refused.value.seconds >= 1
            go_on.set()

    anyio.run(run)


def test_a_predictor_that_hangs_fails_its_requests_and_is_reported() -> None:
    started, go_on, stuck = threading.Event(), threading.Event(), []

    def call(arguments: Any) -> Any:
        started.set()
        go_on.wait(60)

    batcher = make_batcher(call, timeout=0.05, on_stuck=lambda: stuck.append(True))

    async def run() -> None:
        # On a busy machine, a request may have waited for too long before it is called.
        refused: Exception = QueueFull("", 0)
        while not started.is_set():
            with pytest.raises((QueueFull, TooSlow)) as failed:
                await batcher.submit(1)
            refused = failed.value
        assert isinstance(refused, TooSlow)
        with pytest.raises(QueueFull):
            await batcher.submit(2)

    anyio.run(run)
    go_on.set()
    assert stuck == [True]


def test_the_page_has_the_schema_and_cannot_be_left_by_an_example() -> None:
    app = load(Mixed(), {"text": "</script><script>alert(1)"})
    page = get(app, "/").body
    assert b"</script><script>alert" not in page
    assert b"\\u003c/script>" in page


def test_metrics_count_requests(double: ServerApp) -> None:
    post(double, INFER, b"{")
    post(double, INFER, {"inputs": [tensor("x", "FP32", [1, 2], [1, 2])]})
    text = get(double, "/metrics").body.decode()
    assert 'danlu_requests_total{route="/v2/models/NAME/infer",status="400"} 1.0' in text
    assert "danlu_batch_rows_count" in text


@given(st.binary(max_size=200), st.integers(-5, 250) | st.none())
def test_any_bytes_are_decoded_or_refused(body: bytes, length: int | None) -> None:
    with contextlib.suppress(InvalidRequest):
        decode_request(body, length)


@given(
    datatype=st.sampled_from([*DTYPES, "BYTES"]),
    shape=st.lists(st.integers(-1, 4), max_size=3),
    data=st.binary(max_size=64),
    extra=st.integers(-2, 2),
)
def test_any_binary_tensor_is_decoded_or_refused(
    datatype: str, shape: list[int], data: bytes, extra: int
) -> None:
    about = {
        "name": "x", "datatype": datatype, "shape": shape,
        "parameters": {"binary_data_size": len(data) + extra},
    }  # fmt: skip
    head = json.dumps({"inputs": [about]}).encode()
    try:
        _, tensors = decode_request(head + data, len(head))
    except InvalidRequest:
        return
    assert list(tensors["x"].array.shape) == shape


KEYS = st.sampled_from(
    ["x", "text", "count", "table", "inputs", "instances", "dataframe_split", "columns", "data",
     "dataframe_records", "name", "shape", "datatype", "outputs", "parameters", "id", "$array",
     "$bytes", "$float", "dtype", "content_type", "binary_data_size"]
)  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | KEYS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=20,
)
TENSORS = st.lists(
    st.fixed_dictionaries(
        {
            "name": st.sampled_from(["x", "text", "count", "table"]),
            "shape": st.lists(st.integers(-2, 5) | st.just(1 << 40), max_size=40),
            "datatype": st.sampled_from([*DTYPES, "BYTES"]),
            "data": VALUES,
        },
        optional={"parameters": st.dictionaries(KEYS, VALUES | st.just("base64"), max_size=2)},
    ),
    max_size=4,
)


@pytest.fixture(scope="module")
def two() -> list[ServerApp]:
    return [load(Double(), [[1.0, 2.0], [3.0, 4.0]]), load(Mixed(), {"text": "a"})]


@settings(deadline=None)
@given(
    value=VALUES | st.builds(lambda inputs: {"inputs": inputs}, TENSORS),
    path=st.sampled_from([INFER, "/invocations", "/v1/models/m:predict"]),
    number=st.integers(0, 1),
)
def test_any_json_is_answered_or_refused(
    two: list[ServerApp], value: Any, path: str, number: int
) -> None:
    answer = post(two[number], path, json.dumps(value).encode())
    assert answer.status in (200, 400), answer
