"""The program around the commands: help, exit codes, how failures look."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest

from danlu.cli.registry import COMMANDS, SECTIONS
from danlu.errors import (
    BuildFileError,
    DanluError,
    LockError,
    MachineError,
    OutsideError,
    Span,
    StepFailed,
)

from .conftest import Cli

HEAVY = {
    "aiohttp",
    "anyio",
    "asyncio",
    "msgspec",
    "rich",
    "sqlite3",
    "ssl",
    "starlark",
    "subprocess",
    "uv",
}


def imported(*arguments: str, **options: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "danlu", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, **options},
    )
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def test_help_imports_nothing_heavy_and_no_command(home: Path) -> None:
    names = imported("--help")
    assert not names & HEAVY
    assert not [name for name in names if name.startswith(("danlu.cli.verbs", "danlu.commands"))]


def test_a_build_that_shows_nothing_imports_no_terminal_library(home: Path) -> None:
    Path("build.envd").write_text("def build():\n    base(os='debian12')\n    nonsense()\n")
    names = imported("build", "--frozen")
    assert "danlu.commands.build" in names
    assert not names & {"rich", "asyncio", "anyio", "aiohttp"}


def test_every_command_of_the_registry_has_the_summary_that_the_help_shows() -> None:
    import importlib

    for entry in COMMANDS:
        command = importlib.import_module(entry.module).command
        assert isinstance(command, click.Command)
        assert command.name == entry.name
        first = (command.help or "").splitlines()[0]
        assert command.get_short_help_str(200).rstrip(".") + "." == entry.summary
        assert first == entry.summary
        assert entry.section in SECTIONS


def test_the_road_is_in_the_order_it_is_walked(cli: Cli) -> None:
    help_ = cli("--help").out.partition("The road:")[2]
    road = [help_.index(f"\n  {name} ") for name in ("init", "plan", "lock", "build", "run")]
    assert road == sorted(road)


def test_no_command_shows_the_help(cli: Cli) -> None:
    assert cli() == cli("--help")


def test_python_m_danlu_is_the_program(program: Cli) -> None:
    result = program("--version")
    assert (result.code, result.err) == (0, "")
    assert result.out.startswith("danlu ")


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["biuld"], 2, "did you mean `build`?"),
        (["build", "--nonsense"], 2, "no such option"),
        (["build", "extra"], 2, "unexpected extra argument"),
        (["run", "--nonsense", "x"], 125, "no such option"),
        (["run"], 125, "missing argument"),
        (["build"], 2, "danlu init"),
        (["run", "--", "true"], 125, "danlu init"),
        (["build", "--secret", "src=x"], 2, "is not a secret"),
        (["build", "--secret", "id=a,src=missing"], 2, "no file missing"),
        (["lock", "--check", "--upgrade"], 2, "--check"),
    ],
)
def test_wrong_usage_says_what_and_where_to_look(
    cli: Cli, arguments: list[str], code: int, words: str
) -> None:
    result = cli(*arguments)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("error: ")
    assert words in result.err
    assert "\nhint: " in result.err


def raising(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def fails(cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, *more: str) -> Any:
    Path("build.envd").write_text("def build():\n    base(os='debian12')\n")
    monkeypatch.setattr("danlu.commands.build.build", raising(error))
    return cli("build", *more)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (StepFailed("step", code=7), 1),
        (LockError("stale"), 2),
        (OutsideError("registry"), 3),
        (MachineError("no runc"), 4),
        (DanluError("other"), 3),
        (KeyboardInterrupt(), 130),
        (ExceptionGroup("tasks", [StepFailed("step", code=7)]), 1),
        (BaseExceptionGroup("tasks", [KeyboardInterrupt(), OSError("x")]), 130),
        (PermissionError(13, "Permission denied", "/etc/x"), 3),
        (RuntimeError("surprise"), 3),
    ],
)
def test_the_exit_code_is_the_errors(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    result = fails(cli, monkeypatch, error)
    assert (result.code, result.out) == (code, "")


def test_an_error_shows_place_caret_details_and_hint(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = BuildFileError(
        "there is no function install.pyton",
        span=Span("build.envd", 3, 5, 18),
        source_line='    install.pyton("3.11")',
        details=("first", "second\nthird"),
        hint="did you mean install.python?",
    )
    assert fails(cli, monkeypatch, error).err == (
        "error: there is no function install.pyton\n"
        "  --> build.envd:3:5\n"
        "     |\n"
        '   3 |     install.pyton("3.11")\n'
        "     |     ^^^^^^^^^^^^^\n"
        "  first\n"
        "  second\n"
        "  third\n"
        "hint: did you mean install.python?\n"
    )


def test_the_caret_stands_below_wide_characters(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    error = BuildFileError("bad", span=Span("build.envd", 1, 9, 12), source_line='run("丹炉", x=1)')
    lines = fails(cli, monkeypatch, error).err.splitlines()
    assert lines[4] == "     | " + " " * 10 + "^^^"


def test_a_long_source_line_is_cut_around_the_caret(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    line = "x" * 500 + "HERE" + "y" * 500
    error = BuildFileError("bad", span=Span("b", 1, 501, 505), source_line=line)
    shown = fails(cli, monkeypatch, error).err.splitlines()
    text, carets = shown[3], shown[4]
    assert max(map(len, shown)) <= 60
    assert text[carets.index("^") : carets.rindex("^") + 1] == "HERE"


def test_an_error_cannot_move_the_cursor(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    error = OutsideError("bad \x1b[2Jname\r\x07", details=("\x1b]0;title\x07line",))
    assert fails(cli, monkeypatch, error).err == "error: bad name\n  line\n"


def test_a_defect_is_one_line_and_its_traceback_is_in_the_log(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    result = fails(cli, monkeypatch, ZeroDivisionError("by zero"))
    first, hint = result.err.splitlines()
    assert first.endswith("ZeroDivisionError: by zero")
    (log,) = (home / "state/logs").iterdir()
    assert str(log) in hint
    assert "Traceback" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


def test_verbose_shows_the_traceback_of_a_defect(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "Traceback" in fails(cli, monkeypatch, ZeroDivisionError(), "-v").err


def test_a_home_that_cannot_be_written_hides_no_error(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DANLU_HOME", "/proc/nowhere")
    assert "by zero" in fails(cli, monkeypatch, ZeroDivisionError("by zero")).err


def test_json_progress_ends_with_the_error_as_json(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = StepFailed("make failed", code=2, span=Span("build.envd", 2), hint="look")
    result = fails(cli, monkeypatch, error, "--progress", "json")
    assert json.loads(result.err) == {
        "type": "error",
        "message": "make failed",
        "file": "build.envd",
        "line": 2,
        "column": 0,
        "hint": "look",
        "exit_code": 1,
    }


def test_values_of_variables_and_a_programs_arguments_are_not_in_the_log() -> None:
    from danlu.cli.logs import redacted

    shown = redacted(
        ["run", "-e", "TOKEN=abc", "-eKEY=def", "--env=A=ghi", "--", "curl", "-H", "x"]
    )
    assert shown == "run -e TOKEN=… -eKEY=… --env=A=… -- curl … (2 arguments)"
    assert redacted(["run", "curl", "secret"]) == "run …"


def test_only_the_last_logs_are_kept(cli: Cli, home: Path) -> None:
    logs = home / "state/logs"
    logs.mkdir(parents=True)
    for number in range(80):
        (logs / f"20200101T0000{number:02}-1-build.log").touch()
    cli("build")
    assert len(list(logs.iterdir())) == 50


def test_a_reader_that_goes_away_is_no_failure_to_talk_about(program: Cli) -> None:
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"{sys.executable} -m danlu completion bash | true; echo ${{PIPESTATUS[0]}}",
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.stderr == ""
    assert done.stdout in ("0\n", "141\n")


def test_a_full_disk_behind_stdout_is_said(program: Cli) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m danlu version > /dev/full"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 3
    assert done.stderr == "error: cannot write to stdout: No space left on device\n"


def test_closed_descriptors_are_no_failure(program: Cli) -> None:
    done = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m danlu version >&- 2>&- <&-"], timeout=50, check=False
    )
    assert done.returncode == 0


@pytest.mark.parametrize("command", ["plan", "version", "--help", "image ls"])
def test_a_closed_stdout_takes_no_other_files_number(program: Cli, command: str) -> None:
    Path("build.envd").write_text("def build():\n    base(os='debian12')\n")
    line = f"{sys.executable} -m danlu {command} 2>&1 >&-"
    done = subprocess.run(["bash", "-c", line], timeout=50, check=False, capture_output=True)
    assert done.returncode == 0
    assert b"defect" not in done.stdout


def test_a_directory_that_is_gone_is_said(program: Cli, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"mkdir {tmp_path}/gone; cd {tmp_path}/gone; rmdir {tmp_path}/gone;"
            f" {sys.executable} -P -m danlu build",
        ],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 3
    assert "current directory" in done.stderr
