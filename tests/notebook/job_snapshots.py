"""A complete snapshot of a job for tests, and the rules of JupyterLab's HTML sanitizer."""

from __future__ import annotations

from html.parser import HTMLParser

from danlu.jobs.types import ReplicaView
from danlu.submission.job_view_model import JobSnapshot, MetricSeries, OutputLine
from danlu.training.progress import TrainingProgress
from tests.jobs.fake_jobs import replica

__all__ = ["HtmlCollector", "full", "read"]

#: What JupyterLab's sanitizer allows (packages/apputils/src/sanitizer.ts), as far as we use it.
TAGS = {"a", "b", "code", "div", "img", "pre", "span", "table", "tbody", "td", "th", "thead", "tr"}
ATTRIBUTES = {"alt", "class", "href", "src", "style", "target", "title"}


class HtmlCollector(HTMLParser):
    """Collects the text, tags and attributes of HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.text = ""
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        if tag != "img":
            self.open.append(tag)
        for name, value in attrs:
            self.attributes.setdefault(name, []).append(value or "")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read(html: str) -> HtmlCollector:
    """Parse HTML and check that all elements are closed."""
    reader = HtmlCollector()
    reader.feed(html)
    reader.close()
    assert reader.open == []
    return reader


def full() -> JobSnapshot:
    """Return a snapshot with every field set."""
    return JobSnapshot(
        name="digits",
        kind="PyTorchJob",
        state="Running",
        seconds=72.4,
        replicas=(
            ReplicaView(replica(0), "Running", cpu=1.25, memory=812_000_000, gpus=(0, 1)),
            ReplicaView(
                replica(1), "Failed", restarts=2, exit_code=137, reason="OOMKilled", attempt=2
            ),
            ReplicaView(replica(2), "Waiting", waits="a GPU"),
        ),
        progress=TrainingProgress(40, 130, {"loss": 0.3125, "accuracy": 0.9}),
        series=(
            MetricSeries("loss", ((1.0, 2.0), (31.0, 0.5), (62.0, 0.3125)), 0.3125),
            MetricSeries("accuracy", ((1.0, 0.1), (62.0, 0.9)), 0.9),
        ),
        lines=(
            OutputLine("worker-0", "epoch 3: loss 0.3125"),
            OutputLine("worker-1", "if a < b && c > 'd': \"e\""),
        ),
        written=1302,
        notes=("resources: not enforced",),
        logs="/home/user/.local/share/danlu/jobs/digits/logs",
        links={"worker-0": "jobs/digits/logs/worker-0.log"},
    )
