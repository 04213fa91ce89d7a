"""An interrupt never leaves a half-imported package in a kernel."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from danlu.notebook.preload import hold_interrupts

#: Runs cells in a separate shell and prints which of our modules, or of YAML, they import.
PROGRAM = """
import sys, threading
from IPython.core.interactiveshell import InteractiveShell
shell = InteractiveShell.instance()
shell.run_cell("%load_ext danlu.notebook")
late = []
class Recorder:
    def find_spec(self, name, path=None, target=None):
        if threading.current_thread() is threading.main_thread():
            if name.partition(".")[0] in ("danlu", "yaml"):
                late.append(name)
sys.meta_path.insert(0, Recorder())
for options in ("--name first", "--env build.envd", "--name first --replace"):
    shell.run_cell(f"%%distributed --framework pytorch --worker 2 {options}\\nprint(1)\\n")
for words in ("", "show first", "logs first", "rm first"):
    shell.run_cell(f"%jobs {words}")
print("late:", *late, file=sys.stderr)
"""


def test_cells_are_never_the_first_to_import_our_modules(tmp_path: Path) -> None:
    (tmp_path / "build.envd").write_text('def build():\n    base(image="none.example/none")\n')
    settings = {"DANLU_HOME": str(tmp_path / "home"), "IPYTHONDIR": str(tmp_path / "ipython")}
    completed = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=tmp_path,
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "first succeeded" in completed.stdout
    assert completed.stderr.splitlines()[-1] == "late:"


def test_held_interrupt_takes_effect_at_the_end() -> None:
    steps = []

    def interrupt_import() -> None:
        with hold_interrupts():
            os.kill(os.getpid(), signal.SIGINT)
            steps.append("imported")

    with pytest.raises(KeyboardInterrupt):
        interrupt_import()
    assert steps == ["imported"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_interrupts_are_left_alone_when_none_arrives() -> None:
    with hold_interrupts():
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
