"""Every key: what is good of it, what is bad, and that the reference says so."""

from __future__ import annotations

import shlex
from pathlib import Path

import msgspec
import pytest

from danlu.errors import UsageError
from danlu.notebook.grammar import read_cell, read_options
from danlu.notebook.keys import KEYS, Key, find, near, plain, roles
from danlu.notebook.reference import PAGE, help_text, reference
from danlu.notebook.types import CellOrder, Role
from danlu.training.framework import Framework
from danlu.training.registry import BUILT_IN
from tests.conftest import ROOT
from tests.training.frameworks.test_registry import GOOD, install

BUILT = CellOrder(roles={"worker": Role(1)})

#: Values of each key, and what they make of the order.
FINE: dict[str, list[tuple[str, dict[str, object]]]] = {
    "framework": [
        ("pytorch", {"framework": "pytorch"}),
        ("TensorFlow", {"framework": "tensorflow"}),
        ("tf", {"framework": "tensorflow"}),
        ("TFJob", {"framework": "tensorflow"}),
    ],
    "cpu": [("2", {"cpu": "2"}), ("500m", {"cpu": "500m"}), ("0.5", {"cpu": "0.5"})],
    "memory": [
        ("512Mi", {"memory": "512Mi"}),
        ("4G", {"memory": "4G"}),
        ("4GB", {"memory": "4GB"}),
        ("1.5 GiB", {"memory": "1.5 GiB"}),
        ("1e9", {"memory": "1e9"}),
    ],
    "gpu": [("0", {"gpu": 0}), ("8", {"gpu": 8})],
    "cleanPolicy": [("all", {"clean": "All"}), ("NONE", {"clean": "None"})],
    "image": [("ghcr.io/a/b:1@sha256:00", {"image": "ghcr.io/a/b:1@sha256:00"})],
    "env": [
        ("A=1", {"variables": {"A": "1"}}),
        ("A=", {"variables": {"A": ""}}),
        ("a_B1=x y = z", {"variables": {"a_B1": "x y = z"}}),
        ("build.envd", {"env": "build.envd"}),
        ("../a b/build.py:gpu", {"env": "../a b/build.py:gpu"}),
    ],
    "volume": [
        ("/data:/data", {"volumes": ("/data:/data",)}),
        ("my data:/data:ro", {"volumes": ("my data:/data:ro",)}),
        ("~/x:/x:rw", {"volumes": ("~/x:/x:rw",)}),
    ],
    "name": [("a", {"name": "a"}), ("mnist-2", {"name": "mnist-2"})],
    "on": [("local", {"on": "local"})],
    "send": [("x", {"send": ("x",)}), ("x, y,x", {"send": ("x", "y")})],
    "return": [("losses", {"returns": ("losses",)}), ("a,π", {"returns": ("a", "π")})],
    "every": [("true", {"every": True}), ("No", {"every": False}), ("1", {"every": True})],
    "module": [("a,b.c", {"modules": ("a", "b.c")})],
    "detach": [("yes", {"detach": True}), ("0", {"detach": False})],
    "restart": [("onfailure", {"restart": "OnFailure"}), ("ExitCode", {"restart": "ExitCode"})],
    "backoff-limit": [("0", {"backoff_limit": 0}), ("12", {"backoff_limit": 12})],
    "deadline": [("90", {"deadline": 90.0}), ("1h30m", {"deadline": 5400.0})],
    "lines": [("0", {"lines": 0}), ("20", {"lines": 20})],
    "sweep": [("lr=0.1,0.01", {"sweep": ("lr=0.1,0.01",)}), ("d=2:6", {"sweep": ("d=2:6",)})],
    "metric": [("loss", {"metric": "loss"})],
    "goal": [("MAX", {"goal": "max"})],
    "metric-pattern": [("loss=([0-9.]+)", {"pattern": "loss=([0-9.]+)"})],
    "parallel": [("1", {"parallel": 1})],
    "trials": [("20", {"trials": 20})],
}

#: What no value of a key can be, and what is said of it.
BAD: dict[str, list[tuple[str, str]]] = {
    "framework": [("torhc", "no framework is called 'torhc'"), ("a b", "no framework is called")],
    "cpu": [
        ("two", "'two' is no amount"),
        ("-1", "'-1' is no amount"),
        ("1Q", "'1Q' is no amount"),
        ("1,5", "'1,5' is no amount"),
    ],
    "memory": [("4 G", "'4 G' is no amount"), ("lots", "'lots' is no amount")],
    "gpu": [("-1", "'-1' is no whole number"), ("1.5", "'1.5' is no whole number")],
    "cleanPolicy": [("runing", "it cannot be 'runing'"), ("test", "it cannot be 'test'")],
    "image": [("a b", "'a b' is more than one word")],
    "env": [("1A=2", "'1A=2' is neither a variable nor"), ("A =2", "'A =2' is neither a")],
    "volume": [
        ("data", "'data' is no volume"),
        ("data:data", "'data:data' is no volume"),
        (":/data", "':/data' is no volume"),
        ("a:/b:rx", "'a:/b:rx' is no volume"),
        ("a:/b:ro:x", "'a:/b:ro:x' is no volume"),
    ],
    "name": [
        ("MNIST", "'MNIST' is no name"),
        ("a_b", "'a_b' is no name"),
        ("2a", "'2a' is no name"),
        ("a-", "'a-' is no name"),
        ("a" * 64, "is no name"),
    ],
    "on": [("a b", "'a b' is more than one word")],
    "send": [
        ("x y", "'x y' is no name of a variable"),
        ("x,,y", "'' is no name"),
        ("for", "'for'"),
    ],
    "return": [("a.b", "'a.b' is no name of a variable"), ("2", "'2' is no name of a variable")],
    "every": [("maybe", "'maybe' is neither true nor false")],
    "module": [("a-b", "'a-b' is no name of a module"), ("a..b", "'a..b' is no name of a module")],
    "detach": [("2", "'2' is neither true nor false")],
    "restart": [("Allways", "it cannot be 'Allways'")],
    "backoff-limit": [("-1", "'-1' is no whole number"), ("x", "'x' is no whole number")],
    "deadline": [("soon", "'soon' is no time")],
    "lines": [("all", "'all' is no whole number")],
    "sweep": [("lr", "'lr' is not a sweep"), ("a b=1,2", "'a b=1,2' is not a sweep")],
    "metric": [("a b", "'a b' is more than one word")],
    "goal": [("least", "it cannot be 'least'")],
    "metric-pattern": [("loss=(", "'loss=(' is no regular expression")],
    "parallel": [("0", "'0' is no whole number")],
    "trials": [("0", "'0' is no whole number")],
}

#: What else has to be said with a key.
WITH = {
    **dict.fromkeys(("metric", "goal", "metric-pattern", "parallel", "trials"), ("sweep", "a=1,2")),
    "every": ("return", "x"),
}


def cell_order(*said: tuple[str, str]) -> CellOrder:
    cell = read_cell("".join(f"%{word}={value}\n" for word, value in (("worker", "1"), *said)))
    assert cell is not None
    return cell.order


def option_order(*said: tuple[str, str]) -> CellOrder:
    words = [f"--{word}={value}" for word, value in (("worker", "1"), *said)]
    return read_options(shlex.join(words), "").order


GOOD_VALUES = [(name, value, fields) for name in FINE for value, fields in FINE[name]]
BAD_VALUES = [(name, value, message) for name in BAD for value, message in BAD[name]]


def test_every_key_is_tried() -> None:
    names = [key.name for key in KEYS]
    assert list(FINE) == list(BAD) == names


@pytest.mark.parametrize(("name", "value", "fields"), GOOD_VALUES)
def test_good_values(name: str, value: str, fields: dict[str, object]) -> None:
    more = [WITH[name]] if name in WITH else []
    base = cell_order(*more) if more else BUILT
    expected = msgspec.structs.replace(base, **fields)
    assert cell_order((name, value), *more) == expected
    assert option_order((name, value), *more) == expected


@pytest.mark.parametrize(("name", "value", "message"), BAD_VALUES)
def test_bad_values(name: str, value: str, message: str) -> None:
    for order, start in ((cell_order, f"line 2: %{name}: "), (option_order, f"line 1: --{name}: ")):
        with pytest.raises(UsageError) as caught:
            order((name, value))
        assert caught.value.message.startswith(start)
        assert message in caught.value.message


def test_hints_name_what_was_meant() -> None:
    for name, value, hint in (
        ("cleanPolicy", "runing", "did you mean Running?"),
        ("cleanPolicy", "x", "one of All, Running, None"),
        ("restart", "Allways", "did you mean Always?"),
        ("name", "My_Model 2", "did you mean my-model-2?"),
        ("env", "1A=2", "write NAME=VALUE, or FILE[:FUNCTION]"),
        ("parallel", "0", "1 or more"),
        ("image", "a # b", "a comment needs a line of its own"),
    ):
        with pytest.raises(UsageError) as caught:
            cell_order((name, value))
        assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("name", "first", "second", "fields"),
    [
        ("env", "A=1", "B=2", {"variables": {"A": "1", "B": "2"}}),
        ("volume", "a:/a", "b:/b", {"volumes": ("a:/a", "b:/b")}),
        ("send", "x,y", "z,x", {"send": ("x", "y", "z")}),
        ("return", "x", "y", {"returns": ("x", "y")}),
        ("module", "a", "b", {"modules": ("a", "b")}),
        ("sweep", "a=1,2", "b=3:4", {"sweep": ("a=1,2", "b=3:4")}),
    ],
)
def test_some_keys_are_said_again_and_again(
    name: str, first: str, second: str, fields: dict[str, object]
) -> None:
    expected = msgspec.structs.replace(BUILT, **fields)
    assert cell_order((name, first), (name, second)) == expected
    assert option_order((name, first), (name, second)) == expected


@pytest.mark.parametrize("framework", BUILT_IN, ids=lambda one: str(one.name))
def test_each_replica_type_of_a_framework_is_a_key(framework: Framework) -> None:
    for type in framework.types:
        cell = read_cell(f"%framework={framework.name}\n%{type}=3;%cpu=1\n")
        assert cell is not None
        assert cell.order.roles == {plain(str(type)): Role(3, "1")}


@pytest.mark.parametrize("word", ["TunerTracker", "tuner-tracker", "tuner_tracker", "tunertracker"])
def test_a_replica_type_of_two_words_is_written_in_many_ways(word: str) -> None:
    cell = read_cell(f"%{word}=1\n")
    assert cell is not None
    assert cell.order.roles == {"tunertracker": Role(1)}


def test_replica_types_of_other_packages_are_keys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = GOOD + 'FRAMEWORK = replace(FRAMEWORK, types=("Sage", "CPU"), required=())\n'
    install(tmp_path, "keys-lightgbm", "lightgbm", text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "sage" in roles()
    assert near("sgae") == "sage"
    cell = read_cell("%sage=2;%cpu=1\n%framework=lightgbm\n%cpu=3\n")
    assert cell is not None
    assert cell.order.roles == {"sage": Role(2, "1")}
    # A type that is called as a key is, cannot be said.
    assert "cpu" not in roles()
    assert cell.order.cpu == "3"


def test_names_and_aliases_mean_one_key() -> None:
    for key in KEYS:
        for word in (key.name, key.name.upper(), key.name.replace("-", "_"), *key.aliases):
            assert find(word) is key
    words = [plain(word) for key in KEYS for word in (key.name, *key.aliases)]
    assert len(words) == len(set(words))


# -- the reference --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", KEYS, ids=lambda one: str(one.name))
def test_the_examples_of_the_reference_are_good(key: Key) -> None:
    for example in key.examples:
        assert key.read(example)


def test_the_page_is_current() -> None:
    assert (ROOT / PAGE).read_text(encoding="utf-8") == reference(), "make docs"


def test_the_cells_of_the_page_are_jobs() -> None:
    first, second = (part.split("```")[0] for part in reference().split("```python\n")[1:])
    cell = read_cell(first)
    line, _, body = second.partition("\n")
    assert cell is not None
    assert cell.order == read_options(line.removeprefix("%%distributed"), body).order


def test_help_names_every_key_in_79_columns() -> None:
    text = help_text()
    assert all(len(line) < 80 for line in text.splitlines())
    for word in ("--clean-policy", "--metric-pattern", "-e, --env", "--ROLE N", "tuner-tracker"):
        assert word in text
    assert text.count("\n  -") == len(KEYS) + 1
