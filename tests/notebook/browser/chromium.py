"""A headless Chromium, driven by its own DevTools protocol over a pipe.

The pipe (``--remote-debugging-pipe``: file descriptors 3 and 4, messages of JSON that end with a
NUL) needs no port, no driver and no library, and ties the browser to us: it quits when we are gone.
https://chromedevtools.github.io/devtools-protocol/
"""

from __future__ import annotations

import base64
import json
import os
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BufferedWriter, FileIO
from pathlib import Path
from typing import Any

__all__ = ["BrowserError", "BrowserPage", "ChromiumBrowser", "chromium"]

#: Seconds within which an answer must come, where a caller says no other.
LIMIT = 20.0
#: Seconds between two looks at a page.
STEP = 0.05
_SHIFT = 8
_KEYS = {"Enter": 13, "Escape": 27}
_FLAGS = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-dev-shm-usage",
    "--disable-gpu",
    "--force-device-scale-factor=1",
    "--lang=en-US",
    "--mute-audio",
    "--no-default-browser-check",
    "--no-first-run",
)


class BrowserError(Exception):
    """The browser or the page did not carry out a request."""


@contextmanager
def chromium(home: Path) -> Iterator[ChromiumBrowser]:
    """A browser whose profile and home are ``home``; it has ended after the block."""
    root = ("--no-sandbox",) if os.geteuid() == 0 else ()  # Chromium refuses root's sandbox
    flags = (*_FLAGS, *root, f"--user-data-dir={home / 'profile'}", "about:blank")
    theirs_in, ours_out = os.pipe()
    ours_in, theirs_out = os.pipe()
    words = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out}'
    with (home / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", words, "chromium", "chromium", *flags],
            env={**os.environ, "HOME": str(home)},
            pass_fds=(theirs_in, theirs_out),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        with open(ours_in, "rb", buffering=0) as reading, open(ours_out, "wb") as writing:
            yield ChromiumBrowser(reading, writing)
    finally:
        _wait_or_kill(process)


def _wait_or_kill(process: subprocess.Popen[bytes]) -> None:
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


class ChromiumBrowser:
    """Asks and hears answers, one at a time; keeps what pages throw in ``complaints``.

    Of pages that :meth:`BrowserPage.observe` is called for it also keeps there what they log as an
    error, and in ``requested`` the addresses that they load.
    """

    def __init__(self, reading: FileIO, writing: BufferedWriter) -> None:
        self.complaints: list[str] = []
        self.requested: list[str] = []
        self._reading = reading
        self._writing = writing
        self._buffer = b""
        self._number = 0
        self._targets: list[str] = []

    def open(
        self, url: str, *, width: int = 1200, height: int = 900, private: bool = False
    ) -> BrowserPage:
        """Open a new page of the given size; it has begun to load.

        A private page has none of the others' cookies.
        """
        place = self.ask("Target.createBrowserContext") if private else {}
        # In a new window: a tab in the background draws nothing.
        target = self.ask("Target.createTarget", url="about:blank", newWindow=True, **place)
        self._targets.append(target["targetId"])
        attached = self.ask("Target.attachToTarget", targetId=target["targetId"], flatten=True)
        page = BrowserPage(self, attached["sessionId"])
        page.ask("Runtime.enable")
        page.ask(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        page.ask("Page.navigate", url=url)
        return page

    def close_pages(self) -> None:
        """Close all open pages: hidden pages still use the processor."""
        while self._targets:
            self.ask("Target.closeTarget", targetId=self._targets.pop())

    def ask(
        self, method: str, *, session: str = "", limit: float = LIMIT, **parameters: Any
    ) -> dict[str, Any]:
        """The result of a method; :class:`BrowserError` for an error, TimeoutError for none."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        self._writing.write(json.dumps(message).encode() + b"\0")
        self._writing.flush()
        return self._wait_for_answer(self._number, time.monotonic() + limit, method)

    def _wait_for_answer(self, number: int, end: float, method: str) -> dict[str, Any]:
        while True:
            message = json.loads(self._read_message(end, method))
            self._keep_event(message.get("method", ""), message.get("params", {}))
            if message.get("id") != number:
                continue
            if "error" in message:
                raise BrowserError(f"{method}: {message['error']}")
            result: dict[str, Any] = message["result"]
            return result

    def _keep_event(self, method: str, params: dict[str, Any]) -> None:
        if method == "Runtime.exceptionThrown":
            self.complaints.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.complaints.append(json.dumps(params["entry"]))
        elif method == "Network.requestWillBeSent":
            self.requested.append(params["request"]["url"])

    def _read_message(self, end: float, method: str) -> bytes:
        while b"\0" not in self._buffer:
            remaining = end - time.monotonic()
            if remaining <= 0 or not select.select([self._reading], [], [], remaining)[0]:
                raise TimeoutError(f"no answer of the browser to {method}")
            some = self._reading.read(1 << 20)
            if not some:
                raise BrowserError("the browser has ended; see chromium.log")
            self._buffer += some
        message, _, self._buffer = self._buffer.partition(b"\0")
        return message


class BrowserPage:
    """One page: look at it, wait for something on it, use mouse and keyboard, photograph it."""

    def __init__(self, browser: ChromiumBrowser, session: str) -> None:
        self.browser = browser
        self._session = session

    def ask(self, method: str, *, limit: float = LIMIT, **parameters: Any) -> dict[str, Any]:
        """A method of the protocol, for this page."""
        return self.browser.ask(method, session=self._session, limit=limit, **parameters)

    def observe(self) -> None:
        """Let the browser keep what this page logs as an error, and what it loads."""
        self.ask("Log.enable")
        self.ask("Network.enable")

    def evaluate(self, expression: str, *, limit: float = LIMIT) -> Any:
        """The value of JavaScript (of its promise), as JSON."""
        answer = self.ask(
            "Runtime.evaluate",
            limit=limit,
            expression=expression,
            awaitPromise=True,
            returnByValue=True,
        )
        if "exceptionDetails" in answer:
            raise BrowserError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, expression: str, *, limit: float = LIMIT) -> Any:
        """The first true value of ``expression``; TimeoutError, with the page's text, for none.

        An exception, as for an element that does not exist yet, gives None; an element ``True``.
        """
        end = time.monotonic() + limit
        look = f"const found = {expression}; return found instanceof Node || found"
        while True:
            try:
                value = self.evaluate(f"(() => {{ try {{ {look} }} catch {{}} }})()")
            except BrowserError as error:
                if "navigated" not in str(error):  # the page is being replaced by another
                    raise
                value = None
            if value:
                return value
            if time.monotonic() > end:
                output = self.evaluate("document.body.innerText")
                raise TimeoutError(f"not within {limit} s: {expression}; the page says:\n{output}")
            time.sleep(STEP)

    def click(self, expression: str, *, limit: float = LIMIT) -> None:
        """Press the mouse on the middle of the element that ``expression`` gives."""
        x, y = self.wait(
            f"""(element => {{
                element.scrollIntoView({{block: "nearest"}});
                const box = element.getBoundingClientRect();
                return box.width && [box.x + box.width / 2, box.y + box.height / 2];
            }})({expression})""",
            limit=limit,
        )
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str, *, shift: bool = False) -> None:
        """A key of the keyboard (``Enter``, ``Escape``)."""
        for kind in ("rawKeyDown", "keyUp"):
            self.ask(
                "Input.dispatchKeyEvent",
                type=kind,
                key=key,
                code=key,
                windowsVirtualKeyCode=_KEYS[key],
                modifiers=_SHIFT if shift else 0,
            )

    def type_text(self, text: str) -> None:
        """Type into the element that has the focus."""
        self.ask("Input.insertText", text=text)

    def photograph(self, path: Path, *, within: str = "") -> Path:
        """Return a PNG of the page, or of the element ``within``."""
        clip: dict[str, Any] = {}
        if within:
            box = self.evaluate(f"({within}).getBoundingClientRect().toJSON()")
            sides = {name: box[name] for name in ("x", "y", "width", "height")}
            clip = {"clip": {**sides, "scale": 1}}
        answer = self.ask("Page.captureScreenshot", format="png", **clip)
        path.write_bytes(base64.b64decode(answer["data"]))
        return path
