"""Every option: valid and invalid values, and its text in the reference."""

from __future__ import annotations

import inspect
import re
import shlex
from pathlib import Path

import msgspec
import pytest

from danlu.api import train
from danlu.errors import UsageError
from danlu.notebook.options import (
    OPTIONS,
    find_option,
    help_text,
    replica_types,
    suggest_option,
)
from danlu.notebook.parser import parse_cell, parse_distributed
from danlu.notebook.types import CellOptions, ReplicaOptions
from danlu.submission.options import JOB_OPTIONS, JobOption, TrainKeywords, normalize_option_name
from danlu.training.framework import Framework
from danlu.training.registry import BUILT_IN_FRAMEWORKS
from scripts.reference.notebook import PAGE, reference
from tests.conftest import ROOT
from tests.training.frameworks.test_registry import GOOD, install

BUILT = CellOptions(replicas={"worker": ReplicaOptions(1)})

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
    "cleanPolicy": [("all", {"clean_pod_policy": "All"}), ("NONE", {"clean_pod_policy": "None"})],
    "image": [("ghcr.io/a/b:1@sha256:00", {"image": "ghcr.io/a/b:1@sha256:00"})],
    "env": [
        ("A=1", {"environment": {"A": "1"}}),
        ("A=", {"environment": {"A": ""}}),
        ("a_B1=x y = z", {"environment": {"a_B1": "x y = z"}}),
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
    "restart": [("onfailure", {"restart": "OnFailure"}), ("job", {"restart": "Job"})],
    "backoff-limit": [("0", {"backoff_limit": 0}), ("12", {"backoff_limit": 12})],
    "deadline": [("90", {"deadline": 90.0}), ("1h30m", {"deadline": 5400.0})],
    "lines": [("0", {"lines": 0}), ("20", {"lines": 20})],
    "limit": [("500MB", {"limit": 500_000_000}), ("1GiB", {"limit": 1 << 30})],
    "trust-results": [("true", {"trust_results": True}), ("no", {"trust_results": False})],
    "sweep": [("lr=0.1,0.01", {"sweep": ("lr=0.1,0.01",)}), ("d=2:6", {"sweep": ("d=2:6",)})],
    "metric": [("loss", {"metric": "loss"})],
    "goal": [("MAX", {"goal": "max"})],
    "metric-pattern": [("loss=([0-9.]+)", {"pattern": "loss=([0-9.]+)"})],
    "parallel": [("1", {"parallel": 1})],
    "trials": [("20", {"trials": 20})],
    "storage": [("sqlite:///trials.db", {"storage": "sqlite:///trials.db"})],
    "queue": [("research", {"queue": "research"})],
}

#: Invalid values by option, with a part of the error message.
BAD: dict[str, list[tuple[str, str]]] = {
    "framework": [("torhc", "unknown framework 'torhc'"), ("a b", "unknown framework")],
    "cpu": [
        ("two", "invalid quantity 'two'"),
        ("-1", "invalid quantity '-1'"),
        ("1Q", "invalid quantity '1Q'"),
        ("1,5", "invalid quantity '1,5'"),
    ],
    "memory": [("4 G", "invalid quantity '4 G'"), ("lots", "invalid quantity 'lots'")],
    "gpu": [("-1", "invalid whole number '-1'"), ("1.5", "invalid whole number '1.5'")],
    "cleanPolicy": [("runing", "invalid value 'runing'"), ("test", "invalid value 'test'")],
    "image": [("a b", "'a b' is more than one word")],
    "env": [("1A=2", "'1A=2' is neither a variable nor"), ("A =2", "'A =2' is neither a")],
    "volume": [
        ("data", "invalid volume 'data'"),
        ("data:data", "invalid volume 'data:data'"),
        (":/data", "invalid volume ':/data'"),
        ("a:/b:rx", "invalid volume 'a:/b:rx'"),
        ("a:/b:ro:x", "invalid volume 'a:/b:ro:x'"),
    ],
    "name": [
        ("MNIST", "invalid job name 'MNIST'"),
        ("a_b", "invalid job name 'a_b'"),
        ("2a", "invalid job name '2a'"),
        ("a-", "invalid job name 'a-'"),
        ("a" * 64, "invalid job name"),
    ],
    "on": [("a b", "'a b' is more than one word")],
    "send": [
        ("x y", "invalid variable name 'x y'"),
        ("x,,y", "invalid variable name ''"),
        ("for", "'for'"),
    ],
    "return": [("a.b", "invalid variable name 'a.b'"), ("2", "invalid variable name '2'")],
    "every": [("maybe", "invalid boolean 'maybe'")],
    "module": [("a-b", "invalid module name 'a-b'"), ("a..b", "invalid module name 'a..b'")],
    "detach": [("2", "invalid boolean '2'")],
    "restart": [("Allways", "invalid value 'Allways'")],
    "backoff-limit": [("-1", "invalid whole number '-1'"), ("x", "invalid whole number 'x'")],
    "deadline": [("soon", "invalid duration 'soon'")],
    "lines": [("all", "invalid whole number 'all'")],
    "limit": [("much", "invalid size 'much'"), ("-1", "invalid size '-1'")],
    "trust-results": [("maybe", "invalid boolean 'maybe'")],
    "sweep": [("lr", "invalid sweep 'lr'"), ("a b=1,2", "invalid sweep 'a b=1,2'")],
    "metric": [("a b", "'a b' is more than one word")],
    "goal": [("least", "invalid value 'least'")],
    "metric-pattern": [("loss=(", "invalid regular expression 'loss=('")],
    "parallel": [("0", "invalid whole number '0'")],
    "trials": [("0", "invalid whole number '0'")],
    "storage": [("a b", "one word")],
    "queue": [("a b", "one word")],
}

#: Options that require another option.
WITH = {
    **dict.fromkeys(
        ("metric", "goal", "metric-pattern", "parallel", "trials", "storage"), ("sweep", "a=1,2")
    ),
    "every": ("return", "x"),
}


@pytest.mark.parametrize(
    "key", [key for key in OPTIONS if not key.metavar], ids=lambda key: key.name
)
@pytest.mark.parametrize("text", ["", "=true", " true", " yes", "=1", " 1"])
def test_flag_accepts_all_documented_spellings(key: JobOption, text: str) -> None:
    words = f"--worker 1 --return x --{key.name}{text} --name job"
    given = parse_distributed(words, "").options
    ((field, value),) = key.read("true").items()
    assert (getattr(given, field), given.name) == (value, "job")
    negative = parse_distributed(f"--worker 1 --return x --{key.name} false", "").options
    assert getattr(negative, field) is False


def cell_order(*said: tuple[str, str]) -> CellOptions:
    cell = parse_cell("".join(f"%{word}={value}\n" for word, value in (("worker", "1"), *said)))
    assert cell is not None
    return cell.options


def option_order(*said: tuple[str, str]) -> CellOptions:
    words = [f"--{word}={value}" for word, value in (("worker", "1"), *said)]
    return parse_distributed(shlex.join(words), "").options


GOOD_VALUES = [(name, value, fields) for name in FINE for value, fields in FINE[name]]
BAD_VALUES = [(name, value, message) for name in BAD for value, message in BAD[name]]


def test_every_option_has_test_values() -> None:
    names = [key.name for key in OPTIONS]
    assert set(FINE) == set(BAD) == {*names, "cleanPolicy"} - {"clean-pod-policy"}


def test_keywords_of_the_api_are_in_the_table_and_documented() -> None:
    fields = {option.field_name for option in JOB_OPTIONS}
    keywords = set(TrainKeywords.__annotations__)
    assert keywords - fields == {"workers", "replicas", "environment"}
    documented = (inspect.getdoc(train) or "").partition("Keyword Args:")[2]
    assert set(re.findall(r"^ {4}(\w+) \(", documented, flags=re.MULTILINE)) == keywords


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


def test_hints_suggest_the_intended_value() -> None:
    for name, value, hint in (
        ("cleanPolicy", "runing", "did you mean Running?"),
        ("cleanPolicy", "x", "one of All, Running, None"),
        ("restart", "Allways", "did you mean Always?"),
        ("name", "My_Model 2", "did you mean my-model-2?"),
        ("env", "1A=2", "write NAME=VALUE, or FILE[:FUNCTION]"),
        ("parallel", "0", "must be 1 or more"),
        ("image", "a # b", "put the comment on a separate line"),
    ):
        with pytest.raises(UsageError) as caught:
            cell_order((name, value))
        assert caught.value.hint == hint


@pytest.mark.parametrize(
    ("name", "first", "second", "fields"),
    [
        ("env", "A=1", "B=2", {"environment": {"A": "1", "B": "2"}}),
        ("volume", "a:/a", "b:/b", {"volumes": ("a:/a", "b:/b")}),
        ("send", "x,y", "z,x", {"send": ("x", "y", "z")}),
        ("return", "x", "y", {"returns": ("x", "y")}),
        ("module", "a", "b", {"modules": ("a", "b")}),
        ("sweep", "a=1,2", "b=3:4", {"sweep": ("a=1,2", "b=3:4")}),
    ],
)
def test_repeatable_options_accumulate(
    name: str, first: str, second: str, fields: dict[str, object]
) -> None:
    expected = msgspec.structs.replace(BUILT, **fields)
    assert cell_order((name, first), (name, second)) == expected
    assert option_order((name, first), (name, second)) == expected


@pytest.mark.parametrize("framework", BUILT_IN_FRAMEWORKS, ids=lambda item: str(item.name))
def test_every_replica_type_of_a_framework_is_an_option(framework: Framework) -> None:
    for type in framework.replica_types:
        cell = parse_cell(f"%framework={framework.name}\n%{type}=3;%cpu=1\n")
        assert cell is not None
        assert cell.options.replicas == {normalize_option_name(str(type)): ReplicaOptions(3, "1")}


@pytest.mark.parametrize("word", ["TunerTracker", "tuner-tracker", "tuner_tracker", "tunertracker"])
def test_compound_replica_type_can_be_spelled_in_many_ways(word: str) -> None:
    cell = parse_cell(f"%{word}=1\n")
    assert cell is not None
    assert cell.options.replicas == {"tunertracker": ReplicaOptions(1)}


def test_replica_types_of_plugins_are_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = f"""{GOOD}
LightGBMFramework.replica_types = ("Sage", "CPU")
LightGBMFramework.required_types = ()
"""
    install(tmp_path, "keys-lightgbm", "lightgbm", text)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert "sage" in replica_types()
    assert suggest_option("sgae") == "sage"
    cell = parse_cell("%sage=2;%cpu=1\n%framework=lightgbm\n%cpu=3\n")
    assert cell is not None
    assert cell.options.replicas == {"sage": ReplicaOptions(2, "1")}
    # A replica type with the name of an option cannot be set.
    assert "cpu" not in replica_types()
    assert cell.options.cpu == "3"


def test_names_and_aliases_find_the_same_option() -> None:
    for key in OPTIONS:
        for word in (key.name, key.name.upper(), key.name.replace("-", "_"), *key.aliases):
            assert find_option(word) is key
    words = [normalize_option_name(word) for key in OPTIONS for word in (key.name, *key.aliases)]
    assert len(words) == len(set(words))


# -- the reference --------------------------------------------------------------------------------


@pytest.mark.parametrize("key", OPTIONS, ids=lambda option: str(option.name))
def test_examples_in_the_reference_are_valid(key: JobOption) -> None:
    for example in key.examples:
        assert key.read(example)


def test_reference_page_is_current() -> None:
    assert (ROOT / PAGE).read_text(encoding="utf-8") == reference(), "make docs"


def test_cells_in_the_reference_are_jobs() -> None:
    first, second = (part.split("```")[0] for part in reference().split("```python\n")[1:])
    cell = parse_cell(first)
    line, _, body = second.partition("\n")
    assert cell is not None
    assert cell.options == parse_distributed(line.removeprefix("%%distributed"), body).options


def test_help_lists_every_option_in_79_columns() -> None:
    text = help_text()
    assert all(len(line) < 80 for line in text.splitlines())
    for word in (
        "--clean-pod-policy",
        "--metric-pattern",
        "-e, --env",
        "--goal min|max",
        "--TYPE N",
        "tuner-tracker",
    ):
        assert word in text
    assert text.count("\n  -") == len(OPTIONS) + 1
