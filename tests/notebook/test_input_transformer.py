"""Cells in ciao's words among IPython's own, and IPython's way of reading cells."""

from __future__ import annotations

from typing import Any

import pytest
from IPython.core.inputtransformer2 import TransformerManager

from danlu.errors import UsageError
from danlu.notebook import input_transformer

CIAO = "\n\n%framework=pytorch\n%worker=2\n\n    \nx = '''\n%ps=1\n'''\n"


def ipython() -> Any:
    """IPython's own input transformer."""
    return TransformerManager()  # type: ignore[no-untyped-call]


class TransformerShell:
    """The part of a shell that the transformation needs."""

    def __init__(self) -> None:
        self.manager: Any = ipython()

    @property
    def input_transformers_cleanup(self) -> list[Any]:
        results: list[Any] = self.manager.cleanup_transforms
        return results


@pytest.fixture
def shell() -> TransformerShell:
    shell = TransformerShell()
    input_transformer.install_transformers(shell)
    return shell


def parse_magic_call(text: str) -> tuple[str, str, str]:
    """Return the name, line and body in the call of a cell magic."""
    results: list[tuple[str, str, str]] = []

    class IPython:
        def run_cell_magic(self, name: str, line: str, cell: str) -> None:
            results.append((name, line, cell))

    exec(text, {"get_ipython": IPython})
    return results[0]


OPTIONS = "%%distributed --worker 2\n\n    \nx = '''\n   \n>>> y\n'''\n"


@pytest.mark.parametrize("text", [CIAO, OPTIONS, f"\n \n{OPTIONS}", "%%distributed\nx = 1\n"])
def test_job_cell_becomes_a_call_with_unchanged_text(shell: TransformerShell, text: str) -> None:
    assert parse_magic_call(shell.manager.transform_cell(text)) == (
        input_transformer.CELL_MAGIC,
        "",
        text,
    )


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
def test_ordinary_cells_are_not_transformed(shell: TransformerShell, text: str) -> None:
    assert shell.manager.transform_cell(text) == ipython().transform_cell(text)


def test_invalid_job_cell_fails_when_it_runs(shell: TransformerShell) -> None:
    text = "%framework=pytorch\n%wroker=2\nx\n"
    assert parse_magic_call(shell.manager.transform_cell(text)) == (
        input_transformer.CELL_MAGIC,
        "",
        text,
    )
    with pytest.raises(UsageError, match="line 2: unknown option %wroker"):
        input_transformer.parse_job_cell(text)


@pytest.mark.parametrize("first", ["%framework=pytorch\n%worker=2", "%%distributed --worker 2"])
def test_job_cell_at_a_prompt_ends_with_an_empty_line(shell: TransformerShell, first: str) -> None:
    assert shell.manager.check_complete(f"{first}\nx = 1")[0] == "incomplete"
    assert shell.manager.check_complete(f"{first}\nx = 1\n\n")[0] == "complete"


@pytest.mark.parametrize("text", [CIAO, OPTIONS, f"\n \n{OPTIONS}"])
def test_code_keeps_the_cells_line_numbers(text: str) -> None:
    code = input_transformer.parse_job_cell(text).code
    assert code.count("\n") == text.count("\n")
    number = text.split("\n").index("x = '''")
    assert code.split("\n")[number] == "x = '''"


def test_parsing_an_ordinary_cell_as_a_job_is_an_error() -> None:
    with pytest.raises(UsageError, match="this cell is not a job"):
        input_transformer.parse_job_cell("x = 1\n")


def test_transformers_are_installed_once_and_removed() -> None:
    shell: Any = TransformerShell()
    before = list(shell.input_transformers_cleanup)
    input_transformer.install_transformers(shell)
    input_transformer.install_transformers(shell)
    mine = [input_transformer.transform_to_call, input_transformer.transform_to_magic]
    assert shell.input_transformers_cleanup == [*mine, *before]
    input_transformer.uninstall_transformers(shell)
    assert shell.input_transformers_cleanup == before
