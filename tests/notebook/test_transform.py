"""Cells in ciao's words among IPython's own, and IPython's way of reading cells."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from danlu.errors import UsageError
from danlu.notebook import transform

CIAO = "\n\n%framework=pytorch\n%worker=2\n\n    \nx = '''\n%ps=1\n'''\n"


def ipython() -> Any:
    """How IPython reads cells by itself."""
    return TransformerManager()  # type: ignore[no-untyped-call]


class Shell:
    """As much of a shell as the transformation needs."""

    def __init__(self) -> None:
        self.manager: Any = ipython()

    @property
    def input_transformers_cleanup(self) -> list[Any]:
        found: list[Any] = self.manager.cleanup_transforms
        return found


@pytest.fixture
def shell() -> Shell:
    shell = Shell()
    transform.install(shell)
    return shell


def called(text: str) -> tuple[str, str, str]:
    """What the call of a cell magic is given: its name, line and body."""
    found: list[tuple[str, str, str]] = []

    class IPython:
        def run_cell_magic(self, name: str, line: str, cell: str) -> None:
            found.append((name, line, cell))

    exec(text, {"get_ipython": IPython})
    return found[0]


OPTIONS = "%%distributed --worker 2\n\n    \nx = '''\n   \n>>> y\n'''\n"


@pytest.mark.parametrize("text", [CIAO, OPTIONS, f"\n \n{OPTIONS}", "%%distributed\nx = 1\n"])
def test_a_job_becomes_a_call_with_the_cell_byte_for_byte(shell: Shell, text: str) -> None:
    assert called(shell.manager.transform_cell(text)) == (transform.MAGIC, "", text)


@pytest.mark.parametrize(
    "text",
    [
        "x = 1\n",
        "%matplotlib inline\n",
        "%%time\n%worker=2\n",
        "s = '''\n%worker=2\n'''\n",
        "s = '''\n%%distributed\n'''\n",
        "!ls\n",
        "%%distributed?\n",
        "%%distributedly\nx\n",
    ],
)
def test_other_cells_are_read_as_ever(shell: Shell, text: str) -> None:
    assert shell.manager.transform_cell(text) == ipython().transform_cell(text)


def test_a_cell_that_is_wrong_becomes_one_too_and_is_refused_where_it_runs(shell: Shell) -> None:
    text = "%framework=pytorch\n%wroker=2\nx\n"
    assert called(shell.manager.transform_cell(text)) == (transform.MAGIC, "", text)
    with pytest.raises(UsageError, match="line 2: %wroker is no key"):
        transform.read(text)


@pytest.mark.parametrize("first", ["%framework=pytorch\n%worker=2", "%%distributed --worker 2"])
def test_a_cell_at_a_prompt_ends_with_an_empty_line(shell: Shell, first: str) -> None:
    assert shell.manager.check_complete(f"{first}\nx = 1")[0] == "incomplete"
    assert shell.manager.check_complete(f"{first}\nx = 1\n\n")[0] == "complete"


@pytest.mark.parametrize("text", [CIAO, OPTIONS, f"\n \n{OPTIONS}"])
def test_lines_of_the_code_are_those_of_the_cell(text: str) -> None:
    code = transform.read(text).code
    assert code.count("\n") == text.count("\n")
    number = text.split("\n").index("x = '''")
    assert code.split("\n")[number] == "x = '''"


def test_a_cell_that_is_no_job_is_refused() -> None:
    with pytest.raises(UsageError, match="the cell names no job"):
        transform.read("x = 1\n")


def test_loading_twice_and_unloading_leaves_nothing_behind() -> None:
    shell: Any = Shell()
    before = list(shell.input_transformers_cleanup)
    transform.install(shell)
    transform.install(shell)
    mine = [transform.to_call, transform.to_magic]
    assert shell.input_transformers_cleanup == [*mine, *before]
    transform.uninstall(shell)
    assert shell.input_transformers_cleanup == before
