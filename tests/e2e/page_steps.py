"""Steps of a page's script other than its commands: ``python page_steps.py VERB ARGUMENTS``."""

from __future__ import annotations

import os
import pty
import re
import sys
from pathlib import Path

NUMBER = re.compile(r"\d+(?:\.\d+)*")


def replace_line(path: str, name: str, line: str) -> None:
    """Replace the line of a file that calls the function ``name``."""
    old = Path(path).read_text().splitlines()
    new = [line.rstrip() if name in other else other for other in old]
    assert new != old, f"{path} does not call {name}"
    Path(path).write_text("\n".join(new) + "\n")


def find_lines() -> None:
    """Find the lines of stdin, in this order, in the output of the last command."""
    output = Path(os.environ["PAGE_OUTPUT"]).read_text()
    position = 0
    for line in sys.stdin.read().splitlines():
        match = compile_line(line).search(output, position)
        if not match:
            sys.exit(f"the page shows a line that the command did not print: {line!r}")
        position = match.end()


def compile_line(line: str) -> re.Pattern[str]:
    """Compile a line of a page: any number matches a number, and `…` any text."""
    parts = re.split(r"(…|\d+(?:\.\d+)*)", line.strip())
    patterns = [
        ".*?" if part == "…" else NUMBER.pattern if NUMBER.fullmatch(part) else spaces(part)
        for part in parts
    ]
    return re.compile(r"^\s*" + "".join(patterns) + r"\s*$", re.MULTILINE)


def spaces(text: str) -> str:
    """Return a pattern for ``text`` with any width of its spaces: tables are as wide as needed."""
    return r"[ \t]+".join(re.escape(word) for word in re.split(r" +", text))


def type_lines(command: str) -> None:
    """Run a command in a terminal; type each line of stdin after its prompt."""
    prompts = [line.partition(" ")[::2] for line in sys.stdin.read().splitlines()]
    child, terminal = pty.fork()
    if not child:
        os.execvp("bash", ["bash", "-c", command])
    seen = b""
    for prompt, line in prompts:
        seen = read_until(terminal, prompt.encode(), seen)
        os.write(terminal, f"{line}\n".encode() if line else b"\x04")
    read_until(terminal, None, seen)
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def read_until(terminal: int, prompt: bytes | None, seen: bytes) -> bytes:
    """Copy the terminal's output until the prompt (or its end); return what follows it."""
    while prompt is None or prompt not in seen:
        try:
            chunk = os.read(terminal, 4096)
        except OSError:  # EIO: the last program closed the terminal
            chunk = b""
        if not chunk:
            assert prompt is None, f"the command ended before the prompt {prompt!r}"
            break
        sys.stdout.buffer.write(chunk)
        sys.stdout.buffer.flush()
        seen += chunk
    return seen.partition(prompt)[2] if prompt else b""


if __name__ == "__main__":
    verbs = {function.__name__: function for function in (replace_line, find_lines, type_lines)}
    verbs[sys.argv[1]](*sys.argv[2:])
