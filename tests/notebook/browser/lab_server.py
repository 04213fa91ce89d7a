"""A JupyterLab server, and a notebook in it operated like a user does."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.error import URLError

from tests.notebook.browser.chromium import BrowserPage, ChromiumBrowser

__all__ = ["KERNEL", "LabServer", "NotebookPage", "lab", "write_notebook", "write_sos_notebook"]

_TOKEN = "browser-test"
#: Seconds a server or a kernel may take to start on a machine that is busy.
_START = 45.0
_NOTIFICATIONS = {"fetchNews": "false", "checkForUpdates": False}


@dataclass(frozen=True)
class LabServer:
    """A server: its URL, the directory of its notebooks, danlu's home, and its log."""

    url: str
    directory: Path
    home: Path
    log: Path

    def complaints(self) -> list[str]:
        """Return lines of the server's log about a message limit."""
        return [line for line in self.log.read_text().splitlines() if "IOPub" in line]

    #: What opens it, and whether its pages have ``jupyterapp``.
    token: str = _TOKEN
    exposed: bool = True

    def open(self, browser: ChromiumBrowser, name: str, *, height: int = 900) -> NotebookPage:
        """The notebook ``name`` in a page without side bar, when its kernel has answered."""
        url = f"{self.url}lab/workspaces/{Path(name).stem}/tree/{name}?token={self.token}&reset"
        page = browser.open(url, height=height)
        notebook = NotebookPage(page)
        page.wait(f"{_PANEL} && {notebook.cell(0)}", limit=_START)
        if not self.exposed:
            page.wait(f"{_PANEL}.querySelector('[data-status=idle]')", limit=_START)
            return notebook
        # What is run before the kernel is connected may be lost, though the page calls it idle.
        page.wait(f"{KERNEL}.connectionStatus == 'connected' && {KERNEL}.status == 'idle'")
        return notebook


@contextmanager
def lab(program: Path, place: Path, *, kernels: Sequence[Path]) -> Iterator[LabServer]:
    """A JupyterLab of ``program`` (``jupyter-lab``), which has ended after the block.

    All it keeps is below ``place``. ``kernels`` are further directories with
    ``kernels/NAME/kernel.json``.
    """
    notebooks = place / "notebooks"
    notebooks.mkdir(parents=True)
    _write_settings(place / "settings")
    log = place / "jupyter.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [program, *_server_options(notebooks)],
            cwd=notebooks,
            env={**os.environ, **_server_environment(place, kernels)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield LabServer(
            _wait_for_address(process, place / "runtime", log), notebooks, place / "home", log
        )
    finally:
        _stop_server(process)


def _server_options(notebooks: Path) -> list[str]:
    root = ["--allow-root"] if os.geteuid() == 0 else []
    return [
        *root,
        "--no-browser",
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.root_dir={notebooks}",
        f"--IdentityProvider.token={_TOKEN}",
        "--ServerApp.terminals_enabled=False",
        "--LabApp.news_url=",
        "--LabApp.expose_app_in_browser=True",
    ]


def _server_environment(place: Path, kernels: Sequence[Path]) -> dict[str, str]:
    return {
        "DANLU_HOME": str(place / "home"),
        "DANLU_UPKEEP": "off",
        "HOME": str(place),
        "IPYTHONDIR": str(place / "ipython"),
        "JUPYTER_CONFIG_DIR": str(place / "config"),
        "JUPYTER_DATA_DIR": str(place / "data"),
        "JUPYTER_PATH": os.pathsep.join(map(str, kernels)),
        "JUPYTER_RUNTIME_DIR": str(place / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(place / "settings"),
        "JUPYTERLAB_WORKSPACES_DIR": str(place / "workspaces"),
    }


def _write_settings(settings: Path) -> None:
    """Disable the questions that JupyterLab asks at its first start."""
    file = settings / "@jupyterlab/apputils-extension/notification.jupyterlab-settings"
    file.parent.mkdir(parents=True)
    file.write_text(json.dumps(_NOTIFICATIONS))


def _wait_for_address(process: subprocess.Popen[bytes], runtime: Path, log: Path) -> str:
    """Return the server's URL, which it writes to a file named by its process ID."""
    end = time.monotonic() + _START
    while time.monotonic() < end and process.poll() is None:
        for file in runtime.glob(f"jpserver-{process.pid}.json"):
            if url := _read_working_address(file):
                return url
        time.sleep(0.1)
    raise TimeoutError(f"no JupyterLab:\n{log.read_text()}")


def _read_working_address(file: Path) -> str:
    try:
        url = str(json.loads(file.read_bytes())["url"])
        with urllib.request.urlopen(f"{url}api?token={_TOKEN}", timeout=5):
            return url
    except (ValueError, URLError, TimeoutError):
        return ""


def _stop_server(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGTERM)  # ends its kernels first
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def write_notebook(path: Path, *cells: str, kernel: str = "python3") -> None:
    """A notebook of these code cells for the kernel of this name."""
    spec = {"name": kernel, "display_name": kernel, "language": "python"}
    _write_notebook(path, [(source, {}) for source in cells], {"kernelspec": spec})


def write_sos_notebook(path: Path, kernels: Mapping[str, str], *cells: tuple[str, str]) -> None:
    """A notebook of cells for SoS, each with the name of its kernel.

    ``kernels`` are the kernels' names as Jupyter has them by the names that SoS gives them.
    """
    known = [[name, kernel, "", ""] for name, kernel in kernels.items()]
    spec = {"name": "sos", "display_name": "SoS", "language": "sos"}
    output = [(source, {"kernel": name}) for name, source in cells]
    _write_notebook(path, output, {"kernelspec": spec, "sos": {"kernels": known}})


def _write_notebook(
    path: Path, cells: Sequence[tuple[str, Any]], metadata: Mapping[str, Any]
) -> None:
    listing = [
        {
            "cell_type": "code",
            "execution_count": None,
            "id": f"cell-{number}",
            "metadata": output,
            "outputs": [],
            "source": source,
        }
        for number, (source, output) in enumerate(cells)
    ]
    document = {"cells": listing, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    path.write_text(json.dumps(document))


#: A number in the prompt: the cell has ended.
_ANSWERED = """prompt => new Promise(resolve => {
    new MutationObserver(() => {
        if (/\\d/.test(prompt.innerText)) resolve(true);
    }).observe(prompt, {childList: true, characterData: true, subtree: true});
})"""
#: Lines of the box are in view where their middle is between its edges.
_NEWEST = """output => {
    const box = output.querySelector(".danlu-logs");
    const inside = box.getBoundingClientRect();
    const seen = document.createTreeWalker(box, NodeFilter.SHOW_TEXT);
    const range = document.createRange();
    let newest = "";
    while (seen.nextNode()) {
        range.selectNodeContents(seen.currentNode);
        const place = range.getBoundingClientRect();
        const middle = (place.top + place.bottom) / 2;
        if (inside.top < middle && middle < inside.bottom && seen.currentNode.data.trim())
            newest = seen.currentNode.data.trim();
    }
    return newest;
}"""
_RENAMED = """(element, from, to) => {
    const texts = document.createTreeWalker(element, NodeFilter.SHOW_TEXT);
    while (texts.nextNode()) {
        texts.currentNode.data = texts.currentNode.data.replaceAll(from, to);
    }
}"""
#: JavaScript that gives the connection to the kernel of the open notebook.
KERNEL = "jupyterapp.shell.currentWidget.sessionContext.session.kernel"
_PANEL = "document.querySelector('.jp-NotebookPanel')"


class NotebookPage:
    """An open notebook; cells count from 0."""

    def __init__(self, page: BrowserPage) -> None:
        self.page = page

    def cell(self, number: int) -> str:
        """JavaScript that gives a cell's element."""
        return f"{_PANEL}.querySelector('.jp-Cell[data-windowed-list-index=\"{number}\"]')"

    def output(self, number: int) -> str:
        """Return JavaScript for the element of a cell's output."""
        return f"{self.cell(number)}.querySelector('.jp-Cell-outputArea')"

    def run(self, number: int, *, tries: int = 5) -> None:
        """Click into a cell that was never run, and press Shift+Enter.

        Again where that is lost: the cursor does not come on a page that still arranges itself, the
        prompt stays empty where the kernel is not quite connected.
        """
        cell = self.cell(number)
        try:
            self.page.click(f"{cell}.querySelector('.cm-line')")
            self.page.wait(f"{cell}.querySelector('.cm-focused')", limit=1)
            self.page.press("Enter", shift=True)
            prompt = f"{cell}.querySelector('.jp-InputPrompt').innerText"
            self.page.wait(f"/[*\\d]/.test({prompt})", limit=1)
        except TimeoutError:
            if not tries:
                raise
            self.run(number, tries=tries - 1)

    def interrupt(self) -> None:
        """Press the square of the tool bar."""
        self.page.click(f"{_PANEL}.querySelector('[data-command=\"notebook:interrupt-kernel\"]')")

    def interrupt_and_wait(self, number: int) -> None:
        """Interrupt the running cell, and wait until the page shows that it ended."""
        prompt = f"{self.cell(number)}.querySelector('.jp-InputPrompt')"
        self.page.evaluate(f"window.answered = ({_ANSWERED})({prompt}); 0")
        self.interrupt()
        self.page.evaluate("window.answered")

    def says(self, number: int) -> str:
        """The text that a cell has put out."""
        return str(self.page.evaluate(f"{self.output(number)}?.innerText ?? ''"))

    def until(self, number: int, text: str, *, limit: float = 20.0) -> None:
        """Wait for ``text`` in the cell's output."""
        words = json.dumps(text)
        self.page.wait(f"{self.output(number)}.innerText.includes({words})", limit=limit)

    def newest(self, number: int) -> str:
        """The last line of logs, of those that the cell's box of logs shows without scrolling."""
        return str(self.page.evaluate(f"({_NEWEST})({self.output(number)})"))

    def photograph(self, path: Path, number: int, *, home: Path) -> None:
        """A picture of a cell, with danlu's ``home`` where people have theirs."""
        output = [json.dumps(str(path)) for path in (home, "~/.local/share/danlu")]
        self.page.evaluate(f"({_RENAMED})({self.output(number)}, {', '.join(output)})")
        self.page.evaluate(f"{self.cell(number)}.scrollIntoView()")
        self.page.photograph(path, within=self.cell(number))

    def wait_for_end(self, number: int, *, limit: float = 20.0) -> None:
        """Wait until the cell has finished."""
        prompt = f"{self.cell(number)}.querySelector('.jp-InputPrompt').innerText"
        self.page.wait(f"/\\d/.test({prompt})", limit=limit)
