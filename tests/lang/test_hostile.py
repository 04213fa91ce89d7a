"""A file that loops, allocates, prints or nests for ever ends in one clear error, and soon."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from danlu.environment.types import Environment
from danlu.errors import BuildFileError, DanluError
from danlu.lang.evaluation import build_environment, evaluate
from danlu.lang.functions.steps import RunStep
from danlu.lang.protocol import EvaluationLimits
from danlu.lang.python import evaluate_python
from danlu.lang.source_files import CachingLoader, RepositoryContent, SourceFiles
from danlu.lang.subprocess_eval import evaluate_in_child
from tests.lang.support import InMemoryLoader, envd, finding, get_marked_text, python

QUICK = EvaluationLimits(seconds=0.5, memory=256 << 20)


def evaluate_with_limits(
    text: str, *, fork: bool | None = None, limits: EvaluationLimits = QUICK
) -> Environment:
    sources = SourceFiles()
    loader = CachingLoader(InMemoryLoader({"build.envd": text}), sources)
    outcome = evaluate_in_child("build.envd", "build", loader, limits, fork=fork)
    return build_environment(
        outcome, file="build.envd", function="build", sources=sources, limits=limits
    )


def error_of(work: Callable[[], Environment]) -> BuildFileError:
    with pytest.raises(BuildFileError) as caught:
        work()
    assert caught.value.exit_code == 2
    return caught.value


@pytest.mark.parametrize("fork", [True, False], ids=["forked", "spawned"])
def test_an_endless_loop_names_its_line(fork: bool) -> None:
    inner = "        for j in range(1 << 30):\n            pass\n"
    text = f"def build():\n    for i in range(1 << 30):\n{inner}"
    error = error_of(lambda: evaluate_with_limits(text, fork=fork))
    assert "did not finish within 0.5 s" in error.message
    assert error.span is not None
    assert error.span.line == 3


def test_endless_mutual_calls_name_their_line() -> None:
    error = error_of(
        lambda: evaluate_with_limits(
            "def f():\n    g()\ndef g():\n    f()\ndef build():\n    f()\n"
        )
    )
    assert "recursion depth" in error.message


def test_a_single_step_that_does_not_end_is_stopped() -> None:
    text = "def build():\n    x = 10\n    for i in range(100):\n        x = x * x\n"
    assert "did not finish" in error_of(lambda: evaluate_with_limits(text)).message


def test_memory_limit_names_the_line() -> None:
    text = "def build():\n    x = []\n    for i in range(1 << 30):\n        x.append('a' * 100)\n"
    error = error_of(
        lambda: evaluate_with_limits(text, limits=EvaluationLimits(seconds=30, memory=64 << 20))
    )
    assert "more than 64 MiB of memory" in error.message
    assert error.span is not None
    assert error.span.line == 3


GREEDY = [
    "def build():\n    x = [1]\n    for i in range(60):\n        x = x + x\n",
    "def build():\n    x = 'abc'\n    for i in range(60):\n        x = x + x\n",
    "x = list(range(1 << 30))\ndef build():\n    pass\n",
    "def build():\n    run(['a' * 100000000])\n",
]


@pytest.mark.parametrize("text", GREEDY)
def test_huge_allocation_is_one_clear_error(text: str, capfd: pytest.CaptureFixture[str]) -> None:
    error = error_of(lambda: evaluate_with_limits(text, limits=EvaluationLimits(seconds=30)))
    assert "memory" in error.message + error.hint
    assert capfd.readouterr() == ("", "")


NESTED = ["x = " + "-" * 200_000 + "1\n", "x = " + "[" * 200_000 + "]" * 200_000 + "\n"]


@pytest.mark.parametrize("text", NESTED, ids=["minus", "brackets"])
def test_deep_nesting_is_one_clear_error(text: str) -> None:
    error = error_of(lambda: evaluate_with_limits(text, limits=EvaluationLimits(seconds=30)))
    assert "nested too deep" in error.hint


def test_recursive_list_is_an_invalid_argument() -> None:
    error = finding("def build():\n    x = []\n    x.append(x)\n    run(x)\n")
    assert error.message == "run(): a value contains itself"
    assert get_marked_text(error) == "run(x)"


def test_number_of_calls_is_limited() -> None:
    error = finding("def build():\n    for i in range(1 << 20):\n        run(['a'])\n")
    assert "more than 20000 calls" in error.message


def test_printed_text_is_shown_up_to_a_limit(capsys: pytest.CaptureFixture[str]) -> None:
    envd(
        "def build():\n    print('one', 2)\n    for i in range(100000):\n        print('x' * 99)\n"
    )
    printed = capsys.readouterr().err
    assert printed.startswith("one 2\nxxx")
    assert len(printed) < 70_000


def test_message_text_cannot_fake_a_location() -> None:
    error = finding("def build():\n    fail('a\\n --> <0>:1:1\\n  |\\nerror: b')\n")
    assert get_marked_text(error).startswith("fail(")


def test_preamble_internals_are_not_accessible() -> None:
    for name in ("_call", "_include", "_included", "danlu_exports", "_install_python"):
        assert "is not defined" in finding(f"def build():\n    {name}\n").message


def test_rebinding_a_build_function_affects_its_file_only() -> None:
    environment = envd(
        """
        load_me = include("https://example.org/lib")
        def run(words):
            load_me.really_run(words)
        def build():
            run(["a"])
        """,
        lib="def really_run(words):\n    run(words)\n",
    )
    assert environment.steps == (RunStep(("a",)),)


class SlowLoader(InMemoryLoader):
    def include(self, url: str, ref: str) -> RepositoryContent:
        time.sleep(1.6)
        return super().include(url, ref)


def test_waiting_for_a_repository_is_not_counted() -> None:
    sources = SourceFiles()
    loader = SlowLoader(
        {"build.envd": "include('https://example.org/a')\ndef build():\n    pass\n"},
        {"https://example.org/a": {}},
    )
    limits = EvaluationLimits(seconds=1.5)  # less than the loader takes
    outcome = evaluate_in_child("build.envd", "build", CachingLoader(loader, sources), limits)
    assert outcome.failure is None


class FailingLoader(InMemoryLoader):
    def include(self, url: str, ref: str) -> RepositoryContent:
        raise DanluError("the network is away", hint="wait")


def test_exceptions_of_the_loader_are_not_changed() -> None:
    loader = FailingLoader(
        {"build.envd": "include('https://example.org/a')\ndef build():\n    pass\n"}
    )
    with pytest.raises(DanluError) as caught:
        evaluate("build.envd", loader=loader)
    assert type(caught.value) is DanluError
    assert caught.value.hint == "wait"


def list_children() -> set[str]:
    """Return the process IDs of this process's children, ended ones included (proc(5))."""
    lists = Path("/proc/self/task").glob("*/children")
    return {child for children in lists for child in children.read_text().split()}


def test_no_child_and_no_open_file_is_left_behind() -> None:
    before = sorted(os.listdir("/proc/self/fd"))
    children = list_children()
    for text in ("def build():\n    pass\n", GREEDY[2], "def build():\n    fail()\n"):
        for fork in (True, False):
            with contextlib.suppress(BuildFileError):
                evaluate_with_limits(text, fork=fork, limits=EvaluationLimits(seconds=30))
    assert sorted(os.listdir("/proc/self/fd")) == before
    assert list_children() <= children


def test_a_process_with_threads_evaluates_too() -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    try:
        assert envd("def build():\n    run(['a'])\n").steps == (RunStep(("a",)),)
    finally:
        stop.set()
        thread.join()


ENDLESS = """
import sys
from danlu.lang.evaluation import evaluate
class L:
    def read(self, path):
        print("reading", flush=True)
        return sys.argv[2]
    def include(self, url, ref): raise AssertionError
try:
    evaluate(sys.argv[1], loader=L())
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("build.envd", "def build():\n    for i in range(1<<30):\n        x = range(1<<30)\n"),
        ("build.py", "def build():\n    while True:\n        pass\n"),
    ],
)
def test_an_interrupt_ends_the_evaluation(file: str, text: str) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", ENDLESS, file, text], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "reading\n"
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=60) == 130
    process.stdout.close()


PYTHON_ENDLESS = [
    "def build():\n    while True:\n        pass\n",
    "def build():\n    while True:\n        try:\n            while True: pass\n"
    "        except Exception: pass\n",
]


@pytest.mark.parametrize("text", PYTHON_ENDLESS)
def test_an_endless_build_py_names_its_line(text: str) -> None:
    sources = SourceFiles()
    loader = CachingLoader(InMemoryLoader({"build.py": text}), sources)
    error = error_of(
        lambda: evaluate_python("build.py", "build", loader=loader, sources=sources, limits=QUICK)
    )
    assert "did not finish within 0.5 s" in error.message
    assert error.span is not None
    assert error.span.line >= 2


def test_a_greedy_build_py_is_one_clear_error() -> None:
    error = error_of(lambda: python("def build():\n    x = b'a' * (1 << 36)\n"))
    assert "of memory" in error.message
    assert error.span is not None
    assert error.span.line == 2


def test_the_time_limit_of_a_build_py_gives_the_timer_back() -> None:
    handler = signal.getsignal(signal.SIGALRM)
    before, _ = signal.getitimer(signal.ITIMER_REAL)
    python("def build():\n    pass\n")
    after, _ = signal.getitimer(signal.ITIMER_REAL)
    assert signal.getsignal(signal.SIGALRM) is handler
    assert (after > 0) == (before > 0)


def test_while_waiting_is_called_once() -> None:
    text = {"build.envd": 'def build():\n    run(commands=["true"])\n'}
    alone = evaluate("build.envd", loader=InMemoryLoader(text))
    result = []
    again = evaluate(
        "build.envd", loader=InMemoryLoader(text), while_waiting=lambda: result.append(1)
    )
    assert again == alone
    assert result == [1]


def test_failure_of_while_waiting_leaves_no_child() -> None:
    text = {"build.envd": "def build():\n    for i in range(1 << 30):\n        pass\n"}
    children = list_children()
    with pytest.raises(ZeroDivisionError):
        evaluate("build.envd", loader=InMemoryLoader(text), while_waiting=lambda: 1 // 0)
    assert list_children() <= children
