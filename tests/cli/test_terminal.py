"""What the standard streams are."""

from __future__ import annotations

import os
import pty
import sys
from typing import TextIO

import pytest

from danlu.cli.terminal import Terminal


@pytest.mark.parametrize("redirected", ["", "stdin", "stdout", "stderr"])
def test_a_program_gets_the_terminal_if_no_stream_is_redirected(
    monkeypatch: pytest.MonkeyPatch, redirected: str
) -> None:
    main, terminal = pty.openpty()
    with open(terminal, "r+b", buffering=0) as file, open(os.devnull, "w") as null:

        def choose_stream(name: str) -> TextIO:
            return null if name == redirected else opened

        with open(file.fileno(), "w", closefd=False) as opened:
            monkeypatch.setattr(sys, "stdin", choose_stream("stdin"))
            streams = Terminal(out=choose_stream("stdout"), err=choose_stream("stderr"), environ={})
            assert streams.can_attach == (redirected == "")
    os.close(main)
