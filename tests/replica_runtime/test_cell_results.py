"""Results of a cell: variables, from one replica or all."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

from danlu.notebook.variables import unpack_results
from danlu.replica_runtime import encoding
from tests.replica_runtime.bundles import run, write_cell_bundle


def test_returned_variables_are_sent_back(notebook: Path) -> None:
    code = "class Net:\n    def __init__(self): self.w = [1, 2]\n\nnet, loss = Net(), 0.5\n"
    result = run(write_cell_bundle(notebook, code, returns=("net", "loss")), trusted=True)
    results = unpack_results(result.result(), ["net", "loss"])
    assert (results["net"].w, results["loss"]) == ([1, 2], 0.5)


def test_object_of_a_notebook_class_is_returned(notebook: Path) -> None:
    class Point:
        x = 1

    Point.__module__ = "__main__"
    bundle = write_cell_bundle(notebook, "p.x = 2\n", variables={"p": Point()}, returns=("p",))
    results = unpack_results(run(bundle, trusted=True).result(), ["p"])
    assert (type(results["p"]), results["p"].x) == (Point, 2)


def test_exit_code_0_still_returns_variables(notebook: Path) -> None:
    result = run(write_cell_bundle(notebook, "import sys\nx = 1\nsys.exit(0)\n", returns=("x",)))
    assert (result.code, unpack_results(result.result(), ["x"])) == (0, {"x": 1})


def test_unset_return_variable_has_a_suggestion(notebook: Path) -> None:
    code = "losses = [1]\nif not losses:\n    lossses = 1\n"
    result = run(write_cell_bundle(notebook, code, returns=("lossses",)))
    assert (result.code, result.value) == (1, None)
    assert "cannot return lossses: the cell did not set it" in result.err
    assert "did you mean losses?" in result.err
    assert "Traceback" not in result.err
    assert result.raised["refused"]


def test_every_replica_returns_the_variables_it_has(notebook: Path) -> None:
    code = "rank = 1\nif rank == 0:\n    model = 1\n"
    result = run(write_cell_bundle(notebook, code, returns=("rank", "model"), every=True))
    assert (result.code, result.err) == (0, "")
    assert encoding.decode(result.value or b"")["values"].keys() == {"rank"}


def test_unpicklable_result_is_named_by_its_path(notebook: Path) -> None:
    code = "import threading\nstate = {'a': [1, threading.Lock()]}\n"
    result = run(write_cell_bundle(notebook, code, returns=("state",)))
    assert result.code == 1
    assert "cannot return state: cannot pickle '_thread.lock' object (state['a'][1])" in result.err


def test_result_limit_error_names_the_size(notebook: Path) -> None:
    bundle = write_cell_bundle(notebook, "x = bytes(3 << 20)\n", returns=("x",), limit=1 << 20)
    result = run(bundle)
    assert (result.code, result.value) == (1, None)
    assert "cannot return x: it takes 3.0 MiB, but the limit is 1.0 MiB" in result.err
    assert "hint: raise `transfer_limit` (DANLU_TRANSFER_LIMIT) before the job" in result.err
    kept = re.search(r"the return value is too large; it is kept in (\S+) \(", result.err)
    assert kept is not None
    assert pickle.loads(Path(kept[1]).read_bytes()) == {"x": bytes(3 << 20)}
    Path(kept[1]).unlink()
    assert "or write it to a file in the working directory" in result.err
