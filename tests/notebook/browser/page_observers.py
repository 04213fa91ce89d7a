"""Observers inside a page: they record changes between two queries."""

from __future__ import annotations

from typing import Any

from tests.notebook.browser.chromium import BrowserPage

__all__ = ["FrameTimer", "ViewRecorder"]

_FRAMES = """
    window.frames_missed = [];
    let last = performance.now();
    const frame = () => {
        const now = performance.now();
        window.frames_missed.push(now - last);
        last = now;
        requestAnimationFrame(frame);
    };
    requestAnimationFrame(frame);
    0
"""
_VIEWS = """
    window.views_seen = [];
    const look = () => {
        const view = [...document.querySelectorAll(".danlu-job")].at(-1);
        if (!view) return;
        const seen = {
            head: view.firstElementChild.innerText,
            rows: [...view.querySelectorAll("tr")].map(row => row.innerText.split(/\\s+/)),
            curves: view.querySelectorAll("img").length,
        };
        if (JSON.stringify(seen) != JSON.stringify(views_seen.at(-1))) views_seen.push(seen);
    };
    new MutationObserver(look).observe(document.body, {subtree: true, childList: true});
    0
"""


class FrameTimer:
    """Measures how long the page's main thread delays its frames."""

    def __init__(self, page: BrowserPage) -> None:
        self._page = page
        page.evaluate(_FRAMES)

    def longest(self) -> float:
        """Seconds between two frames at most; the page drew as long as this watched."""
        gaps = self._page.evaluate("window.frames_missed")
        assert len(gaps) > 5
        return float(max(gaps)) / 1000


class ViewRecorder:
    """Records the states of a job's view on the page."""

    def __init__(self, page: BrowserPage) -> None:
        self._page = page
        page.evaluate(_VIEWS)

    def seen(self) -> list[dict[str, Any]]:
        """Each that was other than the one before: ``head``, ``rows`` and number of ``curves``."""
        views: list[dict[str, Any]] = self._page.evaluate("window.views_seen")
        return views

    def states(self, replica: str) -> list[str]:
        """The states that a replica's row went through."""
        rows = [row for view in self.seen() for row in view["rows"] if row[0] == replica]
        return _drop_repeats([str(row[1]) for row in rows])

    def heads(self) -> list[str]:
        """The states that the job itself went through."""
        words = {"Preparing", "Submitting", "Pending", "Running", "Stopping", "Stopped"}
        known = words | {"Succeeded", "Failed"}
        output = [word for view in self.seen() for word in view["head"].split() if word in known]
        return _drop_repeats(output)


def _drop_repeats(words: list[str]) -> list[str]:
    return [word for at, word in enumerate(words) if at == 0 or word != words[at - 1]]
