"""Names that programs of environments chose: they cannot control the terminal."""

from __future__ import annotations

import io
import json

import pytest

from danlu.changes.environment_changes import EnvironmentChanges
from danlu.changes.file_changes import ChangedFile
from danlu.changes.python_changes import PythonChange
from danlu.cli.commit import describe_changes
from danlu.cli.output import print_json
from danlu.cli.terminal import Terminal

ESCAPE = "\x1b]0;title\x07"


def test_changes_of_an_environment_are_printed_without_control_sequences() -> None:
    changes = EnvironmentChanges(
        python=(PythonChange("local", "1", requested=True, url=f"file:///{ESCAPE}"),),
        files=(ChangedFile("added", f"/{ESCAPE}\x9b1m\udcff"), ChangedFile("removed", "/\u202e")),
    )
    text = "".join(describe_changes(changes))
    assert text.isprintable()
    assert "\\x1b]0;title" in text


@pytest.mark.parametrize("name", [ESCAPE, "\x9b1m", "\u202e", "a\udcff", "数字"])
def test_json_is_safe_on_a_terminal_and_valid(name: str) -> None:
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    print_json({"path": name}, Terminal(out=out, environ={}))
    data = out.detach().getvalue()
    assert data.decode().replace("\n", "").isprintable()
    assert json.loads(data) == {"path": name}
