"""Limits of the interpreter's process, read from outside while it waits for an answer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from danlu.lang.protocol import EvaluationLimits
from danlu.lang.subprocess_eval import evaluate_in_child

LIMITS = EvaluationLimits(seconds=7, memory=100 << 20)


@dataclass
class ChildObserver:
    """A channel that inspects the child when it requests a text."""

    before: frozenset[str] = frozenset()
    limits: dict[str, str] = field(default_factory=dict)
    descriptors: dict[int, str] = field(default_factory=dict)
    pages: int = 0

    def read(self, path: str) -> str | None:
        # The text of the first file is sent with the request: no child is there yet.
        if path == "build.envd":
            return 'load("lib.envd", "x")\ndef build():\n    pass\n'
        (pid,) = list_child_processes() - self.before
        process = Path("/proc", pid)
        for line in (process / "limits").read_text().splitlines()[1:]:
            # The hard limits: the others can be raised again.
            self.limits[line[:26].strip()] = line[26:].split()[1]
        for entry in (process / "fd").iterdir():
            self.descriptors[int(entry.name)] = os.readlink(entry)
        self.pages = int((process / "statm").read_text().split()[0])
        return "x = 1\n"

    def include(self, url: str, ref: str) -> tuple[str, Mapping[str, str]]:
        raise AssertionError(url)


def list_child_processes() -> frozenset[str]:
    return frozenset(
        pid
        for task in Path("/proc/self/task").iterdir()
        for pid in (task / "children").read_text().split()
    )


@pytest.fixture(params=[True, False], ids=["forked", "spawned"])
def observer(request: pytest.FixtureRequest, tmp_path: Path) -> ChildObserver:
    watcher = ChildObserver(list_child_processes())
    with (tmp_path / "open").open("w") as file:
        os.set_inheritable(file.fileno(), request.param)
        outcome = evaluate_in_child("build.envd", "build", watcher, LIMITS, fork=request.param)
    assert outcome.failure is None
    return watcher


def test_interpreter_writes_no_file_and_no_core(observer: ChildObserver) -> None:
    assert observer.limits["Max file size"] == "0"
    assert observer.limits["Max core file size"] == "0"


def test_interpreter_has_as_much_memory_as_it_held_and_four_times_the_limit(
    observer: ChildObserver,
) -> None:
    allowed = int(observer.limits["Max address space"])
    held = observer.pages * os.sysconf("SC_PAGE_SIZE")
    assert 4 * LIMITS.memory < allowed <= held + 4 * LIMITS.memory


def test_interpreter_has_some_more_seconds_of_processor_than_it_may_take(
    observer: ChildObserver,
) -> None:
    assert LIMITS.seconds < int(observer.limits["Max cpu time"]) <= LIMITS.seconds + 5


def test_interpreter_holds_none_of_our_files(observer: ChildObserver) -> None:
    pipes = {number for number, text in observer.descriptors.items() if text.startswith("pipe:")}
    assert len(pipes) >= 2
    assert not [text for text in observer.descriptors.values() if text.endswith("/open")]
    assert observer.descriptors[2] == os.devnull
    assert len(pipes - {0, 1}) <= 2
    # It watches its own memory.
    others = {
        text for number, text in observer.descriptors.items() if number not in pipes | {0, 1, 2}
    }
    assert {text for text in others if not text.endswith("/statm")} <= {os.devnull}
