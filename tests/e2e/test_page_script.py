from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.e2e.page_script import read_blocks, render_script


def run_page(text: str, directory: Path) -> subprocess.CompletedProcess[str]:
    page = directory / "page.md"
    page.write_text(text)
    return subprocess.run(
        ["bash", "-c", render_script(read_blocks(page))],
        cwd=directory,
        env={**os.environ, "PAGE_OUTPUT": str(directory / "output")},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def test_files_are_written_and_commands_run_in_order(tmp_path: Path) -> None:
    text = """
```
mkdir below && cd below
```
```toml title="settings.toml"
size = 1
```
```sh
grep 'size = 1' settings.toml
```
"""
    assert run_page(text, tmp_path).stdout == "size = 1\n"


def test_failed_command_ends_the_page(tmp_path: Path) -> None:
    result = run_page("```\nfalse\ntrue\n```\n", tmp_path)
    assert result.returncode == 1


@pytest.mark.parametrize(("command", "code"), [("sh -c 'exit 3'", 0), ("true", 1)])
def test_exit_code_must_be_that_of_the_page(command: str, code: int, tmp_path: Path) -> None:
    text = f"<!-- exit code: 3 -->\n```\n{command}\n```\n"
    assert run_page(text, tmp_path).returncode == code


def test_marked_block_is_not_run(tmp_path: Path) -> None:
    assert run_page("<!-- needs: a GPU -->\n```\nfalse\n```\n", tmp_path).returncode == 0


def test_unknown_comment_above_a_block_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown comment above a block"):
        run_page("<!-- need: a GPU -->\n```\nfalse\n```\n", tmp_path)


@pytest.mark.parametrize(
    ("shown", "code"),
    [
        ("started 2 of 3 jobs", 0),
        ("started 7.1 of 3 jobs", 0),  # a number is any number
        ("started … jobs", 0),
        ("… in 3 s", 0),
        ("started 2 of 3", 1),  # not the whole line
        ("started 2 of 3 jobs\ndone in 4 s", 0),
        ("done in 4 s\nstarted 2 of 3 jobs", 1),  # another order
        ("stopped", 1),
    ],
)
def test_output_of_a_session_must_be_printed(shown: str, code: int, tmp_path: Path) -> None:
    command = "printf 'a note\\nstarted 12 of 34 jobs\\ndone  in 5 s\\n'"
    text = f"```console\n$ true\n$ {command}\n{shown}\n```\n"
    result = run_page(text, tmp_path)
    assert result.returncode == code
    assert ("that the command did not print" in result.stderr) == bool(code)


def test_command_with_output_must_succeed(tmp_path: Path) -> None:
    result = run_page("```console\n$ echo here; false\nhere\n```\n", tmp_path)
    assert result.returncode == 1


def test_lines_after_a_prompt_are_typed_in_a_terminal(tmp_path: Path) -> None:
    prompt = "printf 'me@box:/src# '"
    program = f'{prompt}; while read -r line; do echo "typed $line"; {prompt}; done; echo bye'
    (tmp_path / "ask.sh").write_text(program)
    text = """```console
$ sh ask.sh
me@box:/src# first
typed first
me@box:/src# second
typed second
me@box:/src#
… bye
```
"""
    result = run_page(text, tmp_path)
    assert result.returncode == 0, result.stdout + result.stderr
