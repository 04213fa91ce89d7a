"""Variables that travel: what is refused and how it is said, and what comes back."""

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
from danlu.guest import parcel, versions
from danlu.jobs.types import JobView, ReplicaView, Result
from danlu.notebook.values import Limits, pack, returned, unpack
from danlu.training.types import JobStatus, ReplicaId, ReplicaType
from tests.guest.sent import Variables


def packed(value: Any, **limits: int) -> Any:
    return pack(["x"], Variables({"x": value}), limits=Limits(**limits))[0]


class Nested:
    def __init__(self) -> None:
        self.inner = {"a": [0, threading.Lock()]}


def deep() -> list[Any]:
    value: list[Any] = []
    for _ in range(100_000):
        value = [value]
    return value


# -- out ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message", "hint"),
    [
        (lambda: (n for n in [1]), "x cannot be sent: cannot pickle 'generator' object", "list"),
        (threading.Lock, "x cannot be sent: cannot pickle '_thread.lock' object", "plain values"),
        (Nested, "'_thread.lock' object (x.inner['a'][1])", "plain values"),
        (lambda: {"k" * 200: threading.Lock()}, "(x['kkkk", "plain values"),
        (deep, "x cannot be sent: it is nested too deeply", "file"),
    ],
)
def test_what_cannot_be_pickled_is_named_with_its_place_and_why(
    make: Callable[[], Any], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        packed(make())
    assert message in caught.value.message
    assert len(caught.value.message) < 300
    assert hint in caught.value.hint


def test_a_limit_is_told_with_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"it takes 2\.0 KiB, and 1\.0 KiB are allowed"):
        packed(b"x" * 2000, one=1024)
    with pytest.raises(UsageError, match=r"it takes more than \d\d\.\d KiB, and 0\.1 KiB"):
        packed([b"x" * 1000] * 2 + [bytes([n]) * 1000 for n in range(200)], one=100)


def test_all_variables_together_have_a_limit() -> None:
    values = Variables({"a": b"a" * 1000, "b": b"b" * 1000})
    with pytest.raises(UsageError, match=r"b cannot be sent: .* together 0\.5 KiB are left"):
        pack(["a", "b"], values, limits=Limits(together=1500))
    assert [one.name for one in pack(["b", "a", "b"], values)] == ["a", "b"]


def test_a_variable_that_is_not_there_is_refused() -> None:
    with pytest.raises(UsageError, match="no variable y"):
        pack(["y"], Variables({}))


def test_without_cloudpickle_plain_values_travel_and_own_classes_do_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    assert pickle.loads(packed([1, 2]).data) == [1, 2]
    main = type("Own", (), {"__module__": "__main__"})
    monkeypatch.setattr(sys.modules["__main__"], "Own", main, raising=False)
    with pytest.raises(UsageError, match="was not imported from a module") as caught:
        packed(main())
    assert "cloudpickle" in caught.value.hint


# -- what a pickle mentions -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "modules"),
    [
        ([1, "a", None, {2}], []),
        (collections.Counter("ab"), ["collections"]),
        (collections, ["cloudpickle.cloudpickle", "collections"]),
        ({"deep": [ValueError(1)]}, ["builtins"]),
    ],
)
def test_a_pickle_tells_which_modules_it_needs(value: Any, modules: list[str]) -> None:
    assert list(packed(value).modules) == modules


def test_modules_that_a_function_uses_are_told_and_not_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    namespace: dict[str, Any] = {"__name__": "__main__"}
    exec("import colorsys\ndef f(x): return colorsys.rgb_to_hsv(x, x, x)", namespace)
    data = packed(namespace["f"]).data
    monkeypatch.delitem(sys.modules, "colorsys")
    assert "colorsys" in versions.mentioned(data)
    assert "colorsys" not in sys.modules


def test_telling_what_a_pickle_needs_runs_nothing_of_it() -> None:
    class Bomb:
        def __reduce__(self) -> Any:
            return (exec, ("raise SystemExit",))

    data = pickle.dumps([Bomb()])
    assert versions.mentioned(data) == ["builtins"]


def test_libraries_are_told_by_distribution_and_version() -> None:
    from importlib.metadata import version

    assert versions.libraries(["yaml.nodes", "msgspec", "json", "__main__"]) == {
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
def test_the_first_two_numbers_of_a_version_count(
    monkeypatch: pytest.MonkeyPatch, wrote: str, here: str, same: bool
) -> None:
    monkeypatch.setattr(versions, "_version_here", lambda module, distribution: here)
    found = versions.differences(versions.python(), ["lib"], {"lib": ["Lib", wrote]})
    assert found == ([] if same else [("Lib", wrote, here)])


def test_a_python_before_38_reads_nothing_of_a_newer_one(monkeypatch: pytest.MonkeyPatch) -> None:
    old = SimpleNamespace(version_info=(3, 7, 16), modules={})
    monkeypatch.setattr(versions, "sys", old)
    assert versions.differences("3.11.7", [], {}) == [("Python", "3.11.7", "3.7.16")]
    assert versions.differences("3.7.1", ["lib.x"], {}) == []


# -- back -----------------------------------------------------------------------------------------


def returns(python: str = "", **values: Any) -> bytes:
    told = {name: parcel.packed(name, one, most=9999, room=9999) for name, one in values.items()}
    return pickle.dumps({"python": python or versions.python(), "values": told})


def result(**each: bytes) -> Result:
    ids = [ReplicaId(ReplicaType("Worker"), number) for number in range(11)]
    view = JobView(
        "job",
        "PyTorchJob",
        "pytorch",
        "Succeeded",
        JobStatus(),
        replicas=tuple(ReplicaView(one, "Succeeded") for one in ids),
    )
    values = {name.replace("_", "-"): data for name, data in each.items()}
    return Result(view, values.get("worker-0"), values)


def test_the_leaders_variables_come_back_by_name() -> None:
    assert returned(result(worker_0=returns(a=1, b=[2])), ["a", "b"]) == {"a": 1, "b": [2]}
    assert returned(result(), []) == {}


def test_those_of_every_replica_come_back_by_replica_in_order() -> None:
    each = {f"worker_{number}": returns(rank=number) for number in (10, 2, 0)}
    each["worker_2"] = returns(rank=2, only="here")
    found = returned(result(**each), ["rank", "only"], every=True)
    assert found["only"] == {"worker-2": "here"}
    assert list(found["rank"].items()) == [("worker-0", 0), ("worker-2", 2), ("worker-10", 10)]


@pytest.mark.parametrize("every", [False, True])
def test_a_job_that_left_nothing_says_what_is_missing(every: bool) -> None:
    with pytest.raises(JobFailed, match="ended without returning a"):
        returned(result(), ["a"], every=every)


def test_what_another_python_returned_is_refused_and_plain_values_are_not() -> None:
    assert unpack(returns("3.99.1", a=[1])) == {"a": [1]}
    with pytest.raises(UsageError, match="f cannot be returned between these versions") as caught:
        unpack(returns("3.99.1", a=[1], f=lambda: 1))
    here = versions.python()
    assert caught.value.details == (
        f"Python: 3.99.1 in the environment of the job, {here} in the notebook",
    )
    assert "or return plain numbers" in caught.value.hint


def test_what_cannot_be_read_here_says_which_and_why() -> None:
    told = {"data": b"cno_such_module\nBox\n.", "modules": [], "libraries": {}}
    data = pickle.dumps({"python": versions.python(), "values": {"box": told}})
    with pytest.raises(
        UsageError, match="box, which the job returned, cannot be read here: Module"
    ):
        unpack(data)
