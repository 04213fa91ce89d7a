"""Pages of the documentation as shell scripts: their files are written and their commands run.

A page is one script, in the order of its code blocks, so that ``cd`` and variables last. Comments
that the site does not show say what the commands above which they stand need:

``<!-- needs: a registry -->``
    The block is not run; the text says what the test does not have. Blocks that need ``a Kubernetes
    cluster`` are run in ``tests/operator/cluster``.
``<!-- exit code: 1 -->``
    The exit code of the block's last command; 0 without it.
``<!-- slow -->``
    The block is run by the slow tests only.

A block with a ``title`` is a file. A ``console`` block is a session: lines after ``$`` are
commands, and the lines below them are in their output, in this order (a number stands for any
number, ``…`` for any text). Lines after the prompt of an environment are typed in a terminal.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

BLOCK = re.compile(
    r"(?P<marks>(?:^ *<!-- [^>]* -->\n)*)^ *```(?P<info>[^\n`]*)\n(?P<body>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
COMMENT = re.compile(r"<!-- (?P<name>[a-z ]+?)(?:: (?P<value>.+?))? -->")
TITLE = re.compile(r'title="([^"]+)"')
#: Code blocks in these languages are commands, unless they have a title.
SHELLS = ("", "sh", "bash", "console")
_PROMPT = re.compile(r"^(?P<prompt>\S+@\S+:\S+[#$])(?: (?P<line>.*))?$")
_MARKS = {"needs", "exit code", "slow"}


@dataclass(frozen=True)
class Block:
    """A code block: commands, or a file with its title."""

    language: str
    title: str
    body: str
    needs: str = ""
    exit_code: int = 0
    slow: bool = False

    @property
    def is_commands(self) -> bool:
        """Return whether the block has commands to run."""
        return self.language in SHELLS and not self.title

    @property
    def commands(self) -> list[str]:
        """The command lines, each with its continuation lines."""
        body = re.sub(r"\\\n\s*", " ", self.body)
        lines = [line.strip() for line in body.splitlines()]
        if self.language == "console":
            return [line[2:] for line in lines if line.startswith("$ ")]
        return [line for line in lines if line and not line.startswith("#")]


def read_blocks(page: Path) -> Iterator[Block]:
    """Read the code blocks of a page.

    Raises:
        ValueError: A comment above a block is unknown.
    """
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        marks = {}
        for comment in COMMENT.finditer(match["marks"]):
            if comment["name"] not in _MARKS:
                raise ValueError(f"{page.name}: unknown comment above a block: {comment[0]}")
            marks[comment["name"]] = comment["value"] or ""
        title = TITLE.search(match["info"])
        yield Block(
            language=match["info"].split(" ")[0],
            title=title[1] if title else "",
            body=match["body"],
            needs=marks.get("needs", ""),
            exit_code=int(marks.get("exit code", "0")),
            slow="slow" in marks,
        )


def render_script(blocks: Iterator[Block], setup: str = "") -> str:
    """Render the commands and files of ``blocks``, after those of ``setup``, for bash."""
    lines = ["set -euo pipefail", setup, "PS4='+ ${SECONDS}s: '", "set -x"]
    for block in blocks:
        if block.needs:
            continue
        if block.title:
            lines.append(_render_file(block))
        elif block.language == "console":
            lines += _render_session(block)
        elif block.is_commands:
            lines.append(_render_commands(block))
    return "\n".join(lines)


def _render_file(block: Block) -> str:
    if block.body.startswith(" "):  # a changed line of a file that exists
        name = block.body.strip().partition("(")[0]
        return _run_module("replace_line", block.title, name, block.body)
    return f"cat >{shlex.quote(block.title)} <<'END-OF-FILE'\n{block.body}END-OF-FILE"


def _render_commands(block: Block) -> str:
    if not block.exit_code:
        return block.body
    return f"code=0\n{block.body.strip()} || code=$?\n[[ $code == {block.exit_code} ]]"


def _render_session(block: Block) -> Iterator[str]:
    """Render each command with the check of its output."""
    command: list[str] = []
    answer: list[str] = []
    for line in [*block.body.splitlines(), "$ "]:
        is_continued = bool(command) and not answer and command[-1].endswith("\\")
        if line.startswith("$ "):
            if command:
                yield _render_step("\n".join(command), answer, block.exit_code)
            command, answer = [line[2:]], []
        elif is_continued:
            command.append(line)
        else:
            answer.append(line)


def _render_step(command: str, answer: list[str], exit_code: int) -> str:
    typed = [match for line in answer if (match := _PROMPT.match(line))]
    expected = "".join(f"{line}\n" for line in answer if not _PROMPT.match(line))
    if typed:
        keys = "".join(f"{match['prompt']} {match['line'] or ''}\n" for match in typed)
        command = f"{_run_module('type_lines', command)} <<'END-OF-KEYS'\n{keys}END-OF-KEYS"
    if not expected:
        return command
    return "\n".join(
        [
            f'code=0; {{\n{command}\n}} >"$PAGE_OUTPUT" 2>&1 || code=$?; cat "$PAGE_OUTPUT"',
            f"[[ $code == {exit_code} ]]",
            _run_module("find_lines") + " <<'END-OF-OUTPUT'",
            f"{expected}END-OF-OUTPUT",
        ]
    )


def _run_module(verb: str, *arguments: str) -> str:
    module = str(Path(__file__).with_name("page_steps.py"))
    return shlex.join([sys.executable, module, verb, *arguments])
