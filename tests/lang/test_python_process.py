"""A build.py runs in a separate process: changes to that process do not affect danlu."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

HEAD = "import os, subprocess, sys, time\nfrom danlu import base\ndef build():\n"


def plan(directory: Path, body: str) -> subprocess.CompletedProcess[str]:
    lines = "".join(f"    {line}\n" for line in body.split("\n"))
    (directory / "build.py").write_text(HEAD + lines)
    return subprocess.run(
        [sys.executable, "-m", "danlu", "plan"],
        cwd=directory,
        env={**os.environ, "DANLU_HOME": str(directory / "home")},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )


@pytest.mark.parametrize(
    ("body", "how"),
    [
        ("os._exit(0)", "exit code 0"),
        ("os._exit(7)", "exit code 7"),
        ("os.execv('/bin/true', ['true'])", "exit code 0"),
        ("os.kill(os.getpid(), 9)", "signal 9"),
    ],
)
def test_a_file_that_ends_its_process_is_an_error(tmp_path: Path, body: str, how: str) -> None:
    result = plan(tmp_path, body)
    assert result.returncode == 2
    assert f"build.py ended its process with {how}" in result.stderr
    assert "hint:" in result.stderr
    assert result.stdout == ""


def test_output_goes_to_stderr_without_escape_sequences(tmp_path: Path) -> None:
    result = plan(
        tmp_path,
        "print('out \\x1b[31mred\\x1b]0;title\\x07', end='')\n"
        "sys.stderr.write('\\x1b[2Jerr\\rover\\n')\n"
        "subprocess.run(['printf', 'sub \\\\033[1m\\\\n'])\n"
        "base(os='debian12')",
    )
    assert result.returncode == 0
    assert "\x1b" not in result.stdout + result.stderr
    for text in ("out red", "err\n", "over\n", "sub "):
        assert text in result.stderr
        assert text not in result.stdout


def test_a_background_program_of_build_py_is_not_waited_for(tmp_path: Path) -> None:
    body = "base(os='debian12')\nprint(subprocess.Popen(['sleep', '300']).pid)"
    result = plan(tmp_path, body)
    assert result.returncode == 0
    os.kill(int(result.stderr.splitlines()[0]), signal.SIGKILL)


def test_an_error_keeps_its_place_and_its_line(tmp_path: Path) -> None:
    result = plan(tmp_path, "base(o='debian12')")
    assert result.returncode == 2
    assert "build.py:4" in result.stderr
    assert "base(o='debian12')" in result.stderr


def test_starlark_output_has_no_escape_sequences(tmp_path: Path) -> None:
    (tmp_path / "build.envd").write_text(
        'def build():\n    print("a\\x1b[31mred")\n    base(os="debian12")\n'
    )
    result = subprocess.run(
        [sys.executable, "-m", "danlu", "plan"],
        cwd=tmp_path,
        env={**os.environ, "DANLU_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert "ared" in result.stderr
    assert "\x1b" not in result.stderr
