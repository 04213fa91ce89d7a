"""Whatever a job or a cluster says stays text on every page, and in the file."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote

import msgspec
import pytest

from danlu.jobs.types import JobView, ReplicaCommand, ReplicaView
from danlu.training.progress import TrainingProgress
from danlu.training.types import ConditionType, FirstFailure, JobStatus, ReplicaId, ReplicaType
from danlu.ui.export import export_job
from tests.jobs.fake_jobs import START, FakeJobs, JobScript, condition, line, view
from tests.ui.site import make_site, serve

pytestmark = pytest.mark.anyio

#: Closes attributes, elements and comments of every kind, and moves a terminal's cursor.
HOSTILE = """'"></title></script></style></svg>--><img src=x onerror=alert(1)>\x1b[2J\u202e"""
NAME = "job'\"><img src=x>"


class TagReader(HTMLParser):
    """Collects elements and attributes that only our own pages would not have."""

    def __init__(self) -> None:
        super().__init__()
        self.wrong: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs if name.startswith("on") or name == "style"]
        self.wrong += [tag] if tag in ("img", "iframe", "object") else names


def make_view(name: str) -> JobView:
    replica = ReplicaView(
        ReplicaId(ReplicaType(f"Worker{HOSTILE}"), 0),
        "Failed",
        exit_code=1,
        reason=HOSTILE,
        message=HOSTILE,
        host=HOSTILE,
        started=START,
        finished=START,
    )
    failed = condition(ConditionType.FAILED, 1, HOSTILE)
    first = FirstFailure(replica.id, exit_code=1, reason=HOSTILE, message=HOSTILE)
    return msgspec.structs.replace(
        view("Failed", replica, name=name, warnings=(HOSTILE,), labels={HOSTILE: HOSTILE}),
        state=HOSTILE,
        kind=HOSTILE,
        framework=HOSTILE,
        directory=HOSTILE,
        status=JobStatus((failed,), first_failure=first),
        progress=TrainingProgress(
            percentage=5, metrics={HOSTILE: 1.0}, updated=START, history={HOSTILE: ((0.0, 1.0),)}
        ),
    )


async def test_hostile_text_is_no_markup_on_any_page(home: Path) -> None:
    command = ReplicaCommand((HOSTILE, f"--{HOSTILE}", HOSTILE), {HOSTILE: HOSTILE}, HOSTILE)
    scripts = {
        name: JobScript([make_view(name)], [line(HOSTILE)], command=command)
        for name in (NAME, "other")
    }
    site = make_site(home, FakeJobs(**scripts))
    pages = [await export_job(site, NAME)]
    path = quote(NAME, safe="")
    async with serve(site) as client:
        for address in (
            "/",
            f"/?q={quote(HOSTILE)}&state={quote(HOSTILE)}&framework={quote(HOSTILE)}",
            f"/jobs/{path}",
            f"/jobs/{quote(HOSTILE, safe='')}",
            f"/compare?jobs={path},other",
        ):
            pages.append((await client.ask(address))[1])
    for page in pages:
        reader = TagReader()
        reader.feed(page)
        assert reader.wrong == []
        assert "&lt;img src=x" in page
        assert "\x1b" not in page
        assert "\u202e" not in page
