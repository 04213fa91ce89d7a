"""The magics and their error messages, in a fake IPython shell."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from danlu.errors import Span, UsageError
from danlu.notebook import jobs_magic
from danlu.notebook.errors import hide_traceback
from danlu.notebook.magics import DanluMagics, NotebookContext, load, unload
from tests.notebook.cell_context import FakeCellContext


class TerminalShell:
    """The part of IPython's shell that a terminal uses."""

    def __init__(self) -> None:
        self.user_ns: dict[str, Any] = {}
        self.input_transformers_cleanup: list[Any] = []
        self.magics_manager = self
        self.magics: dict[str, dict[str, Any]] = {"line": {}, "cell": {}}
        self.hooks: dict[str, Any] = {}

    def register_magic_function(self, function: Any, kind: str, name: str) -> None:
        self.magics[kind][name] = function

    def set_hook(self, name: str, hook: Any, *, str_key: str) -> None:
        self.hooks[str_key] = hook


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> TerminalShell:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DANLU_HOME", str(tmp_path / "home"))
    return TerminalShell()


def test_load_registers_magics_and_unload_removes_them(shell: TerminalShell) -> None:
    load(shell)
    load(shell)
    assert set(shell.magics["cell"]) == {"distributed", "danlu_cell"}
    assert set(shell.magics["line"]) == {"jobs", "danlu"}
    unload(shell)
    assert shell.magics == {"line": {}, "cell": {}}
    assert shell.input_transformers_cleanup == []


def test_importing_the_package_does_not_import_ipython() -> None:
    code = "import danlu.notebook, danlu.api, sys; print([m for m in sys.modules if 'IPy' in m])"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ast.literal_eval(result.stdout) == []


def test_variables_in_braces_are_expanded_in_options(shell: TerminalShell) -> None:
    shell.user_ns |= {"n": 3, "table": [1]}
    line = NotebookContext(shell).expand_variables(
        r"--worker {n} --pattern 'loss \d{3} {table} {n:d} {none}'"
    )
    assert line == r"--worker 3 --pattern 'loss \d{3} {table} {n:d} {none}'"


def test_help_prints_options_and_runs_nothing(
    shell: TerminalShell, capsys: pytest.CaptureFixture[str]
) -> None:
    DanluMagics(shell).run_distributed("--help", "raise SystemExit\n")
    assert "--framework" in capsys.readouterr().out


def test_job_cell_in_a_terminal_prints_lines(
    shell: TerminalShell, capsys: pytest.CaptureFixture[str]
) -> None:
    DanluMagics(shell).run_distributed(
        "--framework pytorch --name x --return y", "print('hi')\ny = 2\n"
    )
    assert shell.user_ns["y"] == 2
    lines = capsys.readouterr().out.splitlines()
    assert "worker-0 │ hi" in lines
    assert lines[-1].startswith("x succeeded in")


def test_errors_are_shown_without_our_traceback() -> None:
    span = Span("cell", 2)
    with pytest.raises(UsageError) as error, hide_traceback():
        raise UsageError("no", hint="do\nthat", span=span, source_line="%no=1", details=("why",))
    rendered: Any = error.value
    lines = rendered._render_traceback_()
    assert lines[0].endswith(": no")
    assert lines[1:] == ["", "    %no=1", "", "why", "", "hint: do", "hint: that"]


def test_interrupt_is_shown_as_one_line() -> None:
    with pytest.raises(KeyboardInterrupt) as error, hide_traceback():
        raise KeyboardInterrupt
    rendered: Any = error.value
    assert len(rendered._render_traceback_()) == 1


@pytest.mark.parametrize(
    ("line", "message", "hint"),
    [
        ("atach x", "unknown subcommand: %jobs atach", "did you mean attach?"),
        ("show", "%jobs show requires the name of a job", "`%jobs` lists all jobs"),
        ("list x", "%jobs list takes no name", "show|logs"),
        ("show 'x", "No closing quotation", "show|logs"),
        ("show x", "job 'x' not found", "there are no jobs here"),
    ],
)
def test_invalid_jobs_magic_has_a_hint(tmp_path: Path, line: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as error:
        jobs_magic.run_jobs_magic(line, FakeCellContext(tmp_path), lambda data: None)
    assert message in error.value.message
    assert hint in error.value.hint


def test_empty_job_list_is_shown_as_text(tmp_path: Path) -> None:
    output: list[dict[str, str]] = []
    jobs_magic.run_jobs_magic("", FakeCellContext(tmp_path), output.append)
    assert output[0]["text/plain"] == "no jobs"
