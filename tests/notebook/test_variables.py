"""Pickling variables for replicas, and unpacking results."""

from __future__ import annotations

import collections
import pickle
import sys
import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from danlu.errors import JobFailed, UsageError
from danlu.jobs.results import open_values
from danlu.jobs.types import JobResult, JobView, ReplicaView
from danlu.notebook.variables import pickle_variables, unpack_results
from danlu.replica_runtime import encoding, pickles
from danlu.training.types import JobStatus, ReplicaId, ReplicaType
from danlu.util.config import TRANSFER_LIMIT


def pickle_variable(value: Any, limit: int = TRANSFER_LIMIT) -> Any:
    return pickle_variables(["x"], {"x": value}, limit=limit)[0]


class Nested:
    def __init__(self) -> None:
        self.inner = {"a": [0, threading.Lock()]}


def make_deep_value() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


# -- sending --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (lambda: (n for n in [1]), "cannot send x: cannot pickle 'generator' object", "list"),
        (threading.Lock, "cannot send x: cannot pickle '_thread.lock' object", "plain values"),
        (Nested, "'_thread.lock' object (x.inner['a'][1])", "plain values"),
        (lambda: {"k" * 200: threading.Lock()}, "(x['kkkk", "plain values"),
        (make_deep_value, "cannot send x: it is nested too deeply", "file"),
    ],
)
def test_unpicklable_part_is_named_with_its_path(
    make: Callable[[], Any], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        pickle_variable(make())
    assert message in caught.value.message
    assert len(caught.value.message) < 300
    assert hint in caught.value.hint


def test_limit_error_names_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"it takes 2\.0 KiB, but the limit is 1\.0 KiB"):
        pickle_variable(b"x" * 2000, limit=1024)
    with pytest.raises(
        UsageError, match=r"it takes more than \d\d\.\d KiB, but the limit is 0\.1 KiB"
    ):
        pickle_variable([b"x" * 1000] * 2 + [bytes([n]) * 1000 for n in range(200)], limit=100)


def test_all_variables_together_have_a_limit() -> None:
    values = {"a": b"a" * 1000, "b": b"b" * 1000}
    with pytest.raises(UsageError, match=r"cannot send b: .* only 0\.5 KiB are left"):
        pickle_variables(["a", "b"], values, limit=1500)
    assert [variable.name for variable in pickle_variables(["b", "a", "b"], values)] == ["a", "b"]


def test_sending_an_undefined_variable_is_an_error() -> None:
    with pytest.raises(UsageError, match="variable y is not defined"):
        pickle_variables(["y"], {})


def test_without_cloudpickle_only_importable_values_are_sent(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert pickle.loads(pickle_variable([1, 2]).data) == [1, 2]
    main = type("Own", (), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Own", main, raising=False)
    with pytest.raises(UsageError, match="was not imported from a module") as caught:
        pickle_variable(main())
    assert "cloudpickle" in caught.value.hint


# -- modules and versions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "modules"),
    [
        ([1, "a", None, {2}], []),
        (collections.Counter("ab"), ["collections"]),
        (collections, ["cloudpickle.cloudpickle", "collections"]),
        ({"deep": [ValueError(1)]}, ["builtins"]),
    ],
)
def test_modules_of_a_pickle_are_listed(value: Any, modules: list[str]) -> None:
    assert list(pickle_variable(value).modules) == modules


def test_modules_of_a_pickled_function_are_listed_without_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("import colorsys\ndef f(x): return colorsys.rgb_to_hsv(x, x, x)", namespace)
    data = pickle_variable(namespace["f"]).data
    monkeypatch.delitem(sys.modules, "colorsys")
    assert "colorsys" in pickles.list_modules(data)
    assert "colorsys" not in sys.modules


def test_listing_modules_of_a_pickle_runs_no_code() -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (exec, ("raise SystemExit",))

    data = pickle.dumps([Bomb()])
    assert pickles.list_modules(data) == ["builtins"]


def test_libraries_have_distribution_and_version() -> None:
    from importlib.metadata import version

    assert pickles.find_libraries(["yaml.nodes", "msgspec", "json", "__main__"]) == {
        "yaml": ["PyYAML", version("PyYAML")],
        "msgspec": ["msgspec", version("msgspec")],
    }


@pytest.mark.parametrize(
    ("wrote", "here", "same"),
    [
        ("2.1.0", "2.1.9", True),
        ("2.1.0+cpu", "2.1.0+cu121", True),
        ("2.1", "2.2", False),
        ("1.26.4", "2.26.4", False),
        ("2025a", "2025b", True),
        ("unknown", "other", False),
    ],
)
def test_versions_are_compared_by_their_first_two_numbers(
    monkeypatch: pytest.MonkeyPatch, wrote: str, here: str, same: bool
) -> None:
    monkeypatch.setattr(pickles, "_version_here", lambda module, distribution: here)
    version_conflicts = pickles.find_version_conflicts(
        pickles.python_version(), ["lib"], {"lib": ["Lib", wrote]}
    )
    assert version_conflicts == ([] if same else [("Lib", wrote, here)])


def test_python_before_38_conflicts_with_newer_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(version_info=(3, 7, 16), modules={})
    monkeypatch.setattr(pickles, "sys", old)
    assert pickles.find_version_conflicts("3.11.7", [], {}) == [("Python", "3.11.7", "3.7.16")]
    assert pickles.find_version_conflicts("3.7.1", ["lib.x"], {}) == []


# -- results --------------------------------------------------------------------------------------


def returns(python: str = "", **values: Any) -> bytes:
    """Encode results like a replica in a trusted environment."""
    output = {
        name: {"form": "pickle", **pickles.pickle_value(name, value, max_bytes=9999, room=9999)}
        for name, value in values.items()
    }
    return bytes(encoding.encode({"python": python or pickles.python_version(), "values": output}))


def result(**each: bytes) -> JobResult:
    ids = [ReplicaId(ReplicaType("Worker"), number) for number in range(11)]
    view = JobView(
        "job",
        "PyTorchJob",
        "pytorch",
        "Succeeded",
        JobStatus(),
        replicas=tuple(ReplicaView(id, "Succeeded") for id in ids),
    )
    values = {name.replace("_", "-"): data for name, data in each.items()}
    return JobResult(view, values.get("worker-0"), values, trusted=True)


def test_results_of_the_leader_are_unpacked_by_name() -> None:
    assert unpack_results(result(worker_0=returns(a=1, b=[2])), ["a", "b"]) == {"a": 1, "b": [2]}
    assert unpack_results(result(), []) == {}


def test_results_of_every_replica_are_ordered_by_replica() -> None:
    each = {f"worker_{number}": returns(rank=number) for number in (10, 2, 0)}
    each["worker_2"] = returns(rank=2, only="here")
    results = unpack_results(result(**each), ["rank", "only"], every=True)
    assert results["only"] == {"worker-2": "here"}
    assert list(results["rank"].items()) == [("worker-0", 0), ("worker-2", 2), ("worker-10", 10)]


@pytest.mark.parametrize("every", [False, True])
def test_job_without_results_names_the_missing_variables(every: bool) -> None:
    with pytest.raises(JobFailed, match="ended without returning a"):
        unpack_results(result(), ["a"], every=every)


def test_pickles_of_another_python_are_rejected_but_plain_values_are_not() -> None:
    assert open_values(returns("3.99.1", a=[1]), trusted=True) == {"a": [1]}
    with pytest.raises(UsageError, match="f cannot be returned: versions differ") as caught:
        open_values(returns("3.99.1", a=[1], f=lambda: 1), trusted=True)
    here = pickles.python_version()
    assert caught.value.details == (
        f"Python: 3.99.1 in the job's environment, {here} in the notebook",
    )
    assert "or return plain numbers" in caught.value.hint


def test_unreadable_result_is_named_with_its_reason() -> None:
    output = {"form": "pickle", "data": b"cno_such_module\nBox\n."}
    data = bytes(encoding.encode({"python": pickles.python_version(), "values": {"box": output}}))
    with pytest.raises(
        UsageError, match="cannot read box, which the job returned: ModuleNotFoundError"
    ):
        open_values(data, trusted=True)
