"""One job as a single file without scripts, to keep or to send."""

from __future__ import annotations

import os
from collections import deque
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from danlu import __version__
from danlu.jobs.first_failure import explain_first_failure
from danlu.jobs.report import decode_log_line
from danlu.jobs.types import JobBackend, JobView
from danlu.ui.html import Html, clean_text, element, escape_lines, join_html
from danlu.ui.pages.job import render_job_head, render_job_parts
from danlu.ui.types import Site
from danlu.util.redaction import SecretRedactor

_STATIC = Path(__file__).parent / "static"
#: The last lines of each replica are kept; a browser shows these without effort.
_MAX_LINES = 20_000
_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


async def export_job(site: Site, name: str) -> str:
    """Return the current page of a job with its log as HTML, without what looks like a secret.

    Raises :class:`danlu.errors.UsageError` if the job does not exist.
    """
    view = await explain_first_failure(site.backend, await site.backend.view(name), last_line=True)
    redactor = SecretRedactor(os.environ)
    plain = redactor.redact_values("job", msgspec.to_builtins(view))
    view = msgspec.convert(plain, JobView)
    parts = await render_job_parts(site, view)
    written = datetime.now(UTC).isoformat(sep=" ", timespec="seconds")
    style = (_STATIC / "ui.css").read_text(encoding="utf-8")
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=_POLICY),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", f"{view.name} – danlu"),
        element("style", Html(style)),
    )
    log = await _render_log(site.backend, name, redactor)
    note = element("p", f"written by danlu {__version__} at {written}", class_="dim")
    main = element("main", render_job_head(view, actions=False), parts.values(), log, note)
    document = element("html", head, element("body", main), lang="en")
    return join_html((Html("<!doctype html>\n"), document))


async def _render_log(backend: JobBackend, name: str, redactor: SecretRedactor) -> Html:
    """Return the last lines of each replica, without what looks like a secret."""
    lines: deque[str] = deque(maxlen=_MAX_LINES)
    count = 0
    async for line in backend.logs(name, tail=_MAX_LINES):
        count += 1
        lines.append(f"{line.replica} │ {clean_text(decode_log_line(line))}\n")
    text = redactor.redact_text("log", "".join(lines))
    missing = f"… {count - len(lines):,} earlier lines\n" if count > len(lines) else ""
    return element(
        "section", element("h2", "Logs"), element("pre", missing, escape_lines(text), class_="text")
    )
