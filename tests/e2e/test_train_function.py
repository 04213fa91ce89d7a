"""``danlu.train`` of a function in containers: values, exceptions, modules and progress."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import danlu
from danlu.engine.settings import load_settings
from danlu.errors import JobFailed
from danlu.jobs.backends import local_backend
from danlu.replica_runtime import call_entry
from danlu.util.files import remove_tree
from tests.e2e.conftest import Project

pytestmark = pytest.mark.real

MODULE = """
class Model:
    def __init__(self, weights):
        self.weights = weights
"""


@pytest.fixture
def environment(
    project: Project, real_home: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Project]:
    """A project with a module, in an environment that has nothing but this Python."""
    project.write(f'install.python(version="{call_entry.minor_version()}")')
    project.build()
    (project.directory / "local_model.py").write_text(MODULE)
    monkeypatch.setenv("DANLU_HOME", str(real_home))
    monkeypatch.syspath_prepend(str(project.directory))
    monkeypatch.chdir(project.directory)
    yield project
    for directory in (real_home / "jobs").glob("work-*"):
        remove_tree(directory)


def by_value(function: Callable[..., Any]) -> Callable[..., Any]:
    """Make the function like one of a notebook: sent by value, not by the name of this module."""
    function.__module__ = "__main__"
    return function


def test_a_function_gives_the_value_of_each_container(environment: Project) -> None:
    from local_model import Model  # type: ignore[import-not-found]

    offset = 10

    def work(scale: int) -> tuple[str, Any]:
        rank = int(os.environ["RANK"])
        danlu.report(percentage=100, loss=rank / 2)
        print("rank", rank, "in", os.getcwd())
        return os.uname().nodename, Model([offset + scale * rank])

    lines: list[str] = []
    found = danlu.train(
        by_value(work),
        workers=2,
        args=(5,),
        env="build.envd",
        every=True,
        name="work-every",
        log=lines.append,
    )
    assert [result.weights for _, result in found.values()] == [[10], [15]]
    assert [name for name, _ in found.values()] == ["work-every-worker-0", "work-every-worker-1"]
    assert sorted(lines) == [f"worker-{rank} │ rank {rank} in /workspace" for rank in range(2)]
    import anyio

    view = anyio.run(local_backend(load_settings()).view, "work-every")
    assert view.progress is not None
    assert (view.progress.percentage, view.progress.metrics) == (100, {"loss": 0.0})


def test_exception_in_a_container_is_the_cause_of_the_failure(environment: Project) -> None:
    def work() -> None:
        raise LookupError(f"lost in Python {os.sys.version_info[0]}")  # type: ignore[attr-defined]

    with pytest.raises(
        JobFailed, match="worker-0 failed first: LookupError: lost in Python"
    ) as caught:
        danlu.train(by_value(work), workers=1, env="build.envd", log=None, name="work-raises")
    assert isinstance(caught.value.__cause__, LookupError)
    assert str(caught.value.__cause__) == f"lost in Python {sys.version_info[0]}"
    assert any("in work" in line for line in caught.value.details)


def test_another_python_version_in_the_container_is_reported(
    environment: Project, monkeypatch: pytest.MonkeyPatch
) -> None:
    existing = call_entry.minor_version()
    monkeypatch.setattr(call_entry, "minor_version", lambda: "3.1")
    with pytest.raises(JobFailed) as caught:
        danlu.train(by_value(lambda: 1), env="build.envd", log=None, name="work-other")
    assert f"was pickled by Python 3.1, but this is Python {existing}" in str(
        caught.value.__cause__
    )
