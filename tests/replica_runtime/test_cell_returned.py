"""What a cell gives back: variables, from one replica or all."""

from __future__ import annotations

from pathlib import Path

from danlu.notebook.cells import unpack_results
from danlu.replica_runtime import encoding
from tests.replica_runtime.bundles import run, sent


def test_returned_variables_are_sent_back(notebook: Path) -> None:
    code = "class Net:\n    def __init__(self): self.w = [1, 2]\n\nnet, loss = Net(), 0.5\n"
    done = run(sent(notebook, code, returns=("net", "loss")), trusted=True)
    found = unpack_results(done.result(), ["net", "loss"])
    assert (found["net"].w, found["loss"]) == ([1, 2], 0.5)


def test_object_of_a_notebook_class_is_returned(notebook: Path) -> None:
    class Point:
        x = 1

    Point.__module__ = "__main__"
    bundle = sent(notebook, "p.x = 2\n", variables={"p": Point()}, returns=("p",))
    found = unpack_results(run(bundle, trusted=True).result(), ["p"])
    assert (type(found["p"]), found["p"].x) == (Point, 2)


def test_exit_code_0_still_returns_variables(notebook: Path) -> None:
    done = run(sent(notebook, "import sys\nx = 1\nsys.exit(0)\n", returns=("x",)))
    assert (done.code, unpack_results(done.result(), ["x"])) == (0, {"x": 1})


def test_unset_return_variable_has_a_suggestion(notebook: Path) -> None:
    code = "losses = [1]\nif not losses:\n    lossses = 1\n"
    done = run(sent(notebook, code, returns=("lossses",)))
    assert (done.code, done.value) == (1, None)
    assert "cannot return lossses: the cell did not set it" in done.err
    assert "did you mean losses?" in done.err
    assert "Traceback" not in done.err
    assert done.raised["refused"]


def test_every_replica_returns_the_variables_it_has(notebook: Path) -> None:
    code = "rank = 1\nif rank == 0:\n    model = 1\n"
    done = run(sent(notebook, code, returns=("rank", "model"), every=True))
    assert (done.code, done.err) == (0, "")
    assert encoding.decode(done.value or b"")["values"].keys() == {"rank"}


def test_unpicklable_result_is_named_by_its_path(notebook: Path) -> None:
    code = "import threading\nstate = {'a': [1, threading.Lock()]}\n"
    done = run(sent(notebook, code, returns=("state",)))
    assert done.code == 1
    assert "cannot return state: cannot pickle '_thread.lock' object (state['a'][1])" in done.err


def test_result_limit_error_names_the_size(notebook: Path) -> None:
    bundle = sent(notebook, "x = bytes(3 << 20)\n", returns=("x",), limit=1 << 20)
    done = run(bundle)
    assert (done.code, done.value) == (1, None)
    assert "cannot return x: it takes 3.0 MiB, but the limit is 1.0 MiB" in done.err
    assert "hint: write it to a file" in done.err
