"""What a cell gives back: variables, from one replica or all."""

from __future__ import annotations

import pickle
from pathlib import Path

from danlu.notebook.values import Limits, returned
from tests.guest.sent import run, sent


def test_what_is_returned_comes_back(notebook: Path) -> None:
    code = "class Net:\n    def __init__(self): self.w = [1, 2]\n\nnet, loss = Net(), 0.5\n"
    done = run(sent(notebook, code, returns=("net", "loss")))
    found = returned(done.result(), ["net", "loss"])
    assert (found["net"].w, found["loss"]) == ([1, 2], 0.5)


def test_an_object_of_the_notebooks_own_class_comes_back_as_one(notebook: Path) -> None:
    class Point:
        x = 1

    Point.__module__ = "__main__"
    bundle = sent(notebook, "p.x = 2\n", variables={"p": Point()}, returns=("p",))
    found = returned(run(bundle).result(), ["p"])
    assert (type(found["p"]), found["p"].x) == (Point, 2)


def test_exiting_with_0_returns_what_was_set(notebook: Path) -> None:
    done = run(sent(notebook, "import sys\nx = 1\nsys.exit(0)\n", returns=("x",)))
    assert (done.code, returned(done.result(), ["x"])) == (0, {"x": 1})


def test_a_variable_that_was_never_set_is_named_with_the_nearest(notebook: Path) -> None:
    code = "losses = [1]\nif not losses:\n    lossses = 1\n"
    done = run(sent(notebook, code, returns=("lossses",)))
    assert (done.code, done.value) == (1, None)
    assert "the cell has no variable lossses to return" in done.err
    assert "did you mean losses?" in done.err
    assert "Traceback" not in done.err
    assert done.raised["refused"]


def test_of_every_replica_what_it_has_comes_back(notebook: Path) -> None:
    code = "rank = 1\nif rank == 0:\n    model = 1\n"
    done = run(sent(notebook, code, returns=("rank", "model"), every=True))
    assert (done.code, done.err) == (0, "")
    assert pickle.loads(done.value or b"")["values"].keys() == {"rank"}


def test_a_returned_lock_is_refused_by_its_place_in_the_variable(notebook: Path) -> None:
    code = "import threading\nstate = {'a': [1, threading.Lock()]}\n"
    done = run(sent(notebook, code, returns=("state",)))
    assert done.code == 1
    assert (
        "state cannot be returned: cannot pickle '_thread.lock' object (state['a'][1])" in done.err
    )


def test_what_is_returned_has_a_limit_that_is_told_with_the_size(notebook: Path) -> None:
    bundle = sent(notebook, "x = bytes(3 << 20)\n", returns=("x",), limits=Limits(one=1 << 20))
    done = run(bundle)
    assert (done.code, done.value) == (1, None)
    assert "x cannot be returned: it takes 3.0 MiB, and 1.0 MiB are allowed" in done.err
    assert "hint: write it to a file" in done.err
