"""Which command lines of ``danlu exec`` are understood without loading the program."""

from __future__ import annotations

import msgspec
import pytest

from danlu.cli.environment_stamp import encode_exec_request, split_exec
from danlu.engine.environment_control import StartExecRequest, encode_exec, terminal_request
from danlu.engine.types import ExecRequest


@pytest.mark.parametrize(
    ("words", "selection", "program"),
    [
        ("exec true", ["exec"], ("true",)),
        ("exec -- ls -l", ["exec"], ("ls", "-l")),
        ("exec ls -- -l", ["exec"], ("ls", "--", "-l")),
        ("exec -n lab ls -n", ["exec", "-n", "lab"], ("ls", "-n")),
        ("exec -n lab -- -x", ["exec", "-n", "lab"], ("-x",)),
    ],
)
def test_the_environment_is_told_from_the_program(
    words: str, selection: list[str], program: tuple[str, ...]
) -> None:
    assert split_exec(words.split()) == (selection, program)


@pytest.mark.parametrize(
    "words",
    ["exec", "exec --", "exec -n", "exec -n lab", "exec -n lab --", "exec -v true", "exec --help"],
)
def test_other_command_lines_are_left_to_the_program(words: str) -> None:
    assert split_exec(words.split()) is None


@pytest.mark.parametrize("terminal", [False, True])
def test_the_request_is_that_of_the_program(terminal: bool) -> None:
    args = ("printf", "%s", 'é "', "\\ \n\t\x1f\x7f\u2028", "😀", "")
    request = terminal_request(args) if terminal else ExecRequest(args)
    both = encode_exec_request(args, terminal=terminal), encode_exec(request)
    first, second = (msgspec.json.decode(data, type=StartExecRequest) for data in both)
    assert first == second
