"""The program around the commands: help, exit codes, display of failures."""

from __future__ import annotations

import errno
import importlib
import json
import os
import pstats
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from danlu.cli import groups, program, progress
from danlu.cli.app import COMMANDS, root
from danlu.cli.groups import REFERENCE_PAGE, SectionedGroup
from danlu.cli.terminal import Terminal
from danlu.errors import (
    BuildFileError,
    DanluError,
    LockError,
    MachineError,
    OutsideError,
    Span,
    StepFailed,
    TemporaryError,
    UsageError,
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


def list_imported_modules(*arguments: str, **options: str) -> set[str]:
    result = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "danlu", *arguments],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, **options},
    )
    lines = [line for line in result.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


def test_help_imports_nothing_heavy_and_no_command(home: Path) -> None:
    names = list_imported_modules("--help")
    assert not names & HEAVY
    assert not names & {spec.module for spec in COMMANDS}
    assert not [name for name in names if name.startswith(("danlu.project", "danlu.engine"))]


def test_failing_build_file_imports_no_terminal_library(home: Path) -> None:
    Path("build.envd").write_text("def build():\n    base(os='debian12')\n    nonsense()\n")
    names = list_imported_modules("build", "--frozen")
    assert "danlu.project.build" in names
    assert not names & {"rich", "asyncio", "aiohttp"}


def test_a_profile_of_a_command_is_written(tmp_path: Path) -> None:
    profile = tmp_path / "profile"
    subprocess.run(
        [sys.executable, "-m", "cProfile", "-o", profile, "-m", "danlu", "version"],
        capture_output=True,
        timeout=50,
        check=True,
    )
    assert any(name == "main" for _, _, name in pstats.Stats(str(profile)).stats)  # type: ignore[attr-defined]


def test_registry_repeats_the_first_line_of_every_command_s_help() -> None:
    for spec in COMMANDS:
        command = importlib.import_module(spec.module).command
        assert isinstance(command, click.Command)
        assert command.name == spec.name
        assert (command.help or "").splitlines()[0] == spec.summary


def iter_commands(
    group: SectionedGroup = root, path: str = "danlu"
) -> Iterator[tuple[str, click.Command]]:
    with click.Context(group, info_name="danlu") as context:
        for name in group.list_commands(context):
            command = group.get_command(context, name)
            assert command is not None
            yield f"{path} {name}", command
            if isinstance(command, SectionedGroup):
                yield from iter_commands(command, f"{path} {name}")


def test_help_texts_are_one_short_line() -> None:
    long = []
    for path, command in iter_commands():
        texts = {path: (command.help or "").splitlines()[0]}
        if not path.startswith("danlu operator"):  # its flags are documented at length
            for option in command.params:
                if isinstance(option, click.Option):
                    texts[f"{path} {option.opts[-1]}"] = option.help or ""
        long += [f"{name}: {text}" for name, text in texts.items() if not 0 < len(text) <= 75]
    assert long == []


def test_environment_commands_are_listed_in_the_order_of_use(cli: Cli) -> None:
    help_ = cli("--help").out.partition("Environments:")[2]
    order = [help_.index(f"\n  {name} ") for name in ("init", "plan", "lock", "build", "run")]
    assert order == sorted(order)


def test_help_ends_with_the_page_of_the_reference(cli: Cli) -> None:
    root_directory = Path(__file__).parents[2]
    page = root_directory / REFERENCE_PAGE
    for arguments in (["--help"], ["image", "--help"], ["jobs", "logs", "--help"]):
        last = cli(*arguments).out.splitlines()[-1]
        path = " ".join(["danlu", *arguments[:-1]])
        anchor = path.replace(" ", "-")
        assert last == f"Documentation: {page}#{anchor}"
        assert f"# {path}\n" in page.read_text()


def test_help_outside_a_checkout_names_the_page_of_the_repository(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "REFERENCE_PAGE", "docs/missing.md")
    last = cli("--help").out.splitlines()[-1]
    assert last == "Documentation: docs/missing.md of danlu's repository"


@pytest.mark.parametrize(
    ("command", "instead"),
    [
        ("shell", "danlu up"),
        ("destroy", "danlu image rm"),
        ("envs", "danlu ps"),
        ("list", "danlu ps"),
        ("jupyter", "config.jupyter()"),
        ("attach", "danlu exec"),
        ("images", "danlu image ls"),
        ("rmi", "danlu image rm"),
        ("pull", "danlu image pull"),
        ("pause", "danlu stop"),
    ],
)
def test_commands_of_envd_and_docker_are_answered_with_ours(
    cli: Cli, command: str, instead: str
) -> None:
    result = cli(command)
    assert result.code == 2
    assert f"unknown command `{command}`" in result.err
    assert instead in result.err


@pytest.mark.parametrize("command", ["lock", "plan"])
def test_the_progress_of_a_lock_is_not_called_a_build(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    titles = []
    make = progress.make_build_renderer

    def record_title(kind: str, terminal: Terminal, **options: Any) -> progress.BuildRenderer:
        titles.append(options["title"])
        return make(kind, terminal, **options)

    monkeypatch.setattr(progress, "make_build_renderer", record_title)
    monkeypatch.setattr(f"danlu.cli.{command}.lock", raise_error(OutsideError("no")))
    Path("build.envd").write_text("def build():\n    base(os='debian12')\n")
    assert cli(command, *(["--lock"] if command == "plan" else [])).code == 3
    assert titles == ["locking"]


def test_synonyms_of_subcommands_are_suggested(cli: Cli) -> None:
    assert "did you mean `ls`?" in cli("image", "list").err
    assert "did you mean `show`?" in cli("jobs", "describe").err


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
        (["build", "--secret", "src=x"], 2, "invalid secret"),
        (["build", "--secret", "id=a,src=missing"], 2, "secret file missing not found"),
        (["lock", "--check", "--upgrade"], 2, "--check"),
    ],
)
def test_usage_error_has_a_message_and_a_hint(
    cli: Cli, arguments: list[str], code: int, words: str
) -> None:
    result = cli(*arguments)
    assert (result.code, result.out) == (code, "")
    assert result.err.startswith("error: ")
    assert words in result.err
    assert "\nhint: " in result.err


def raise_error(error: BaseException) -> Callable[..., Any]:
    def fail(*_: object, **__: object) -> None:
        raise error

    return fail


def fail_with(cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, *more: str) -> Any:
    Path("build.envd").write_text("def build():\n    base(os='debian12')\n")
    monkeypatch.setattr("danlu.cli.build.build_project", raise_error(error))
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
def test_exit_code_depends_on_the_error(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int
) -> None:
    result = fail_with(cli, monkeypatch, error)
    assert (result.code, result.out) == (code, "")


@pytest.mark.parametrize("name", ["HTTPS_PROXY", "https_proxy", "ALL_PROXY"])
@pytest.mark.parametrize(
    ("kind", "message", "detail", "blamed"),
    [
        (OutsideError, "cannot reach the package index: https://x.org/", "", True),
        (TemporaryError, "git ls-remote failed", "fatal: Failed to connect to x.org", True),
        (OutsideError, "the disk is broken", "", False),
        (UsageError, "cannot connect a and b", "", False),
    ],
)
def test_a_proxy_that_does_not_answer_is_named(
    cli: Cli,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    kind: type[DanluError],
    message: str,
    detail: str,
    *,
    blamed: bool,
) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        monkeypatch.setenv(name, f"http://me:secret@{address}")
        error = kind(message, details=(detail,), hint="own")
        lines = fail_with(cli, monkeypatch, error).err.splitlines()
    hint = (
        f"hint: the proxy http://***@{address} does not accept connections (Connection refused):"
        f" correct or unset {name}; NO_PROXY lists hosts to reach without it"
    )
    assert lines[-2:] == [hint, "      own"] if blamed else lines[-1] == "hint: own"


def test_a_proxy_that_answers_is_not_blamed(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        monkeypatch.setenv("HTTPS_PROXY", f"127.0.0.1:{proxy.getsockname()[1]}")
        result = fail_with(cli, monkeypatch, OutsideError("cannot reach x.org", hint="own"))
    assert result.err == "error: cannot reach x.org\nhint: own\n"


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
    assert fail_with(cli, monkeypatch, error).err == (
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


def test_caret_is_aligned_below_wide_characters(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    error = BuildFileError("bad", span=Span("build.envd", 1, 9, 12), source_line='run("丹炉", x=1)')
    lines = fail_with(cli, monkeypatch, error).err.splitlines()
    assert lines[4] == "     | " + " " * 10 + "^^^"


def test_long_source_line_is_cut_around_the_caret(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    line = "x" * 500 + "HERE" + "y" * 500
    error = BuildFileError("bad", span=Span("b", 1, 501, 505), source_line=line)
    output = fail_with(cli, monkeypatch, error).err.splitlines()
    text, carets = output[3], output[4]
    assert max(map(len, output)) <= 60
    assert text[carets.index("^") : carets.rindex("^") + 1] == "HERE"


def test_control_sequences_are_stripped_from_errors(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = OutsideError("bad \x1b[2Jname\r\x07", details=("\x1b]0;title\x07line",))
    assert fail_with(cli, monkeypatch, error).err == "error: bad name\n  line\n"


def test_internal_error_is_one_line_with_its_traceback_in_the_log(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, home: Path
) -> None:
    result = fail_with(cli, monkeypatch, ZeroDivisionError("by zero"))
    first, hint = result.err.splitlines()
    assert first.endswith("ZeroDivisionError: by zero")
    (log,) = (home / "state/logs").iterdir()
    assert str(log) in hint
    assert "Traceback" in log.read_text()
    assert log.stat().st_mode & 0o077 == 0


def test_verbose_prints_the_traceback_of_an_internal_error(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "Traceback" in fail_with(cli, monkeypatch, ZeroDivisionError(), "-v").err


def test_unwritable_home_does_not_hide_the_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DANLU_HOME", "/proc/nowhere")
    assert "by zero" in fail_with(cli, monkeypatch, ZeroDivisionError("by zero")).err


def test_json_progress_ends_with_the_error_as_json(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    error = StepFailed("make failed", code=2, span=Span("build.envd", 2), hint="look")
    result = fail_with(cli, monkeypatch, error, "--progress", "json")
    assert json.loads(result.err) == {
        "type": "error",
        "message": "make failed",
        "file": "build.envd",
        "line": 2,
        "column": 0,
        "hint": "look",
        "exit_code": 1,
    }


def test_log_omits_values_of_variables_and_arguments_of_commands() -> None:
    from danlu.cli.run_log import redact_arguments

    output = redact_arguments(
        ["run", "-e", "TOKEN=abc", "-eKEY=def", "--env=A=ghi", "--", "curl", "-H", "x"]
    )
    assert output == "run -e TOKEN=… -eKEY=… --env=A=… -- curl … (2 arguments)"
    assert redact_arguments(["run", "curl", "secret"]) == "run …"


def test_old_logs_are_removed(cli: Cli, home: Path) -> None:
    logs = home / "state/logs"
    logs.mkdir(parents=True)
    for number in range(80):
        (logs / f"20200101T0000{number:02}-1-build.log").touch()
    cli("build")
    assert len(list(logs.iterdir())) == 50


def test_closed_pipe_is_not_reported(program: Cli) -> None:
    result = subprocess.run(
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
    assert result.stderr == ""
    assert result.stdout in ("0\n", "141\n")


def test_full_disk_behind_stdout_is_an_error(program: Cli) -> None:
    result = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m danlu version > /dev/full"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert result.returncode == 3
    assert result.stderr == "error: cannot write to stdout: No space left on device\n"


def test_closed_descriptors_do_not_fail(program: Cli) -> None:
    result = subprocess.run(
        ["bash", "-c", f"{sys.executable} -m danlu version >&- 2>&- <&-"], timeout=50, check=False
    )
    assert result.returncode == 0


@pytest.mark.parametrize("command", ["plan", "version", "--help", "image ls"])
def test_closed_stdout_is_not_replaced_by_another_file(program: Cli, command: str) -> None:
    Path("build.envd").write_text("def build():\n    base(os='debian12')\n")
    line = f"{sys.executable} -m danlu {command} 2>&1 >&-"
    result = subprocess.run(["bash", "-c", line], timeout=50, check=False, capture_output=True)
    assert result.returncode == 0
    assert b"defect" not in result.stdout


def test_removed_current_directory_is_an_error(program: Cli, tmp_path: Path) -> None:
    result = subprocess.run(
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
    assert result.returncode == 3
    assert "current directory" in result.stderr


@pytest.mark.parametrize("moment", ["_report_failure", "Session.close"])
def test_second_interrupt_prints_no_traceback(moment: str) -> None:
    program = (
        "import os, signal, sys\n"
        "from danlu.cli import program\n"
        "from danlu.cli.session import Session\n"
        "def interrupt(*arguments):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return 130\n"
        "def invoke(this, arguments):\n"
        "    raise KeyboardInterrupt\n"
        "program._invoke_command = invoke\n"
        f"program.{moment} = interrupt\n"
        "sys.exit(program.run(['version']))\n"
    )
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert result.returncode in (130, -signal.SIGINT)
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize(
    ("number", "hint"),
    [(errno.ENOSPC, "free some space"), (errno.EROFS, "writable"), (errno.EIO, "dmesg")],
)
def test_failure_of_the_disk_has_the_hint_that_fits(
    home: Path, number: int, hint: str, monkeypatch: pytest.MonkeyPatch, cli: Cli
) -> None:
    def fail(session: object, arguments: list[str]) -> int:
        raise OSError(number, os.strerror(number), "/data/file")

    monkeypatch.setattr(program, "_invoke_command", fail)
    result = cli("version")
    assert result.code == 3
    assert result.err.startswith(f"error: /data/file: {os.strerror(number)}\nhint: ")
    assert hint in result.err


@pytest.mark.parametrize("module", ["danlu.cli.command_stamp", "danlu.cli.program"])
def test_interrupt_is_reported_while_the_program_is_loaded(module: str) -> None:
    program = (
        "import sys\n"
        "from danlu.cli import __main__\n"
        "class Finder:\n"
        "    def find_spec(self, name, *arguments):\n"
        f"        if name == '{module}':\n"
        "            raise KeyboardInterrupt\n"
        "sys.meta_path.insert(0, Finder())\n"
        "sys.argv[1:] = ['version']\n"
        "sys.exit(__main__.main())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (130, "interrupted\n")


def test_interrupted_command_does_not_wait_for_idle_threads() -> None:
    """As anyio's are after Ctrl-C was pressed again while its event loop stopped."""
    program = (
        "import queue, sys, threading\n"
        "from danlu.cli import __main__, program\n"
        "def invoke(this, arguments):\n"
        "    threading.Thread(target=queue.Queue().get).start()\n"
        "    raise KeyboardInterrupt\n"
        "program._invoke_command = invoke\n"
        "sys.argv[1:] = ['version']\n"
        "sys.exit(__main__.main())\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert (result.returncode, result.stderr) == (130, "interrupted\n")
