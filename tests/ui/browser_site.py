"""The program `danlu ui` of a danlu home, for a browser."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.notebook.browser.chromium import BrowserPage, ChromiumBrowser
from tests.ports import free_port

TOKEN = "0123456789abcdef-of-a-test"


@dataclass
class UiProgram:
    """Starts `danlu ui`, and kills it; always with the same port and token."""

    home: Path
    arguments: tuple[str, ...] = ()
    port: int = field(default_factory=free_port)
    process: subprocess.Popen[str] | None = None

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it; it accepts connections afterwards."""
        token = self.home.parent / "token"
        token.write_text(TOKEN)
        words = ["--port", str(self.port), "--token-file", str(token), "--no-browser"]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "danlu", "ui", *words, *self.arguments],
            env={**os.environ, "DANLU_HOME": str(self.home)},
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == f"{self.origin}/#token={TOKEN}\n"

    def kill(self) -> None:
        """Kill it, as a crash does."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """Stop it, as Ctrl-C does, and return its exit code."""
        return self._end(signal.SIGINT)

    def _end(self, number: signal.Signals) -> int:
        assert self.process is not None
        assert self.process.stdout is not None
        self.process.send_signal(number)
        code = self.process.wait(30)
        self.process.stdout.close()
        return code

    def open(self, browser: ChromiumBrowser, path: str = "/", *, width: int = 1200) -> BrowserPage:
        """Open a page as a user does with the printed address; it is live afterwards."""
        page = browser.open(f"{self.origin}{path}#token={TOKEN}", width=width)
        page.observe()
        page.wait(
            "['live', 'finished'].includes(document.querySelector('#connection').dataset.state)"
        )
        return page


@contextmanager
def ui_program(home: Path, *arguments: str) -> Iterator[UiProgram]:
    """Run `danlu ui`; it ends without an error afterwards."""
    program = UiProgram(home, arguments)
    program.start()
    try:
        yield program
    finally:
        code = program.stop()
    assert code == 0
