"""The tutorials work as written: their files are created and their commands run, in order.

A command block is skipped only if a comment above it says what it needs that this test does not
have (``<!-- needs: a registry -->``); ``<!-- exit code: 1 -->`` names another code than 0.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.test_repository import ROOT

pytestmark = [pytest.mark.real, pytest.mark.timeout(900)]

BLOCK = re.compile(
    r"(?:<!-- (?P<mark>[^>]*) -->\n)?^```(?P<info>[^\n]*)\n(?P<body>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
TITLE = re.compile(r'title="([^"]+)"')


#: Replaces the line of a file that calls a function: FILE NAME LINE.
REPLACE = """
import pathlib, sys
path, name, line = pathlib.Path(sys.argv[1]), *sys.argv[2:]
old = path.read_text().splitlines()
new = [line.rstrip() if name in other else other for other in old]
assert new != old
path.write_text("\\n".join(new) + "\\n")
"""


@dataclass(frozen=True)
class Block:
    """A code block: a file with its title, or commands (without one)."""

    title: str
    body: str
    exit_code: int = 0


def read_blocks(page: Path) -> Iterator[Block]:
    for match in BLOCK.finditer(page.read_text(encoding="utf-8")):
        mark = match["mark"] or ""
        if mark.startswith("needs: "):
            continue
        code = int(mark.removeprefix("exit code: ")) if mark else 0
        title = TITLE.search(match["info"])
        yield Block(title[1] if title else "", match["body"], code)


def render_script(blocks: Iterator[Block]) -> str:
    """Write the page as one shell script, so that `cd` and variables last."""
    lines = ["set -euo pipefail"]
    for block in blocks:
        if not block.title:
            lines.append(block.body if not block.exit_code else expect_code(block))
        elif block.body.startswith(" "):  # a changed line of a file that exists
            name = block.body.strip().partition("(")[0]
            lines.append(shlex.join([sys.executable, "-c", REPLACE, block.title, name, block.body]))
        else:
            lines.append(f"cat >{shlex.quote(block.title)} <<'END'\n{block.body}END")
    return "\n".join(lines)


def expect_code(block: Block) -> str:
    return f"code=0\n{block.body.strip()} || code=$?\n[[ $code == {block.exit_code} ]]"


@pytest.mark.parametrize("name", ["first-environment", "first-training"])
def test_a_tutorial_works_as_written(name: str, tmp_path: Path, real_home: Path) -> None:
    script = render_script(read_blocks(ROOT / f"docs/tutorials/{name}.md"))
    assert script.count("danlu ") > 5
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
