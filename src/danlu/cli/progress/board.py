"""What the live tree knows, and the rows it shows: fed by events, drawn at any time."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

import msgspec

from danlu.cli.progress.lines import shorten
from danlu.cli.terminal import clean
from danlu.cli.units import duration, size
from danlu.graph.progress import Ended, Event, Finished, Log, Message, Started, Transfer

__all__ = ["Board", "Row"]

#: Branches in the order a build walks them; others follow as they come.
_ORDER = ("base", "system", "python", "config", "steps")

_KEPT_LINES = 6

#: Running vertices that are shown of one branch; the rest are counted.
_SHOWN = 8


class Row(msgspec.Struct, frozen=True):
    """One line: left part, right part (time), and the style of the whole."""

    left: str
    right: str = ""
    style: str = ""
    spins: bool = False


class _Running(msgspec.Struct):
    name: str
    began: float
    current: int = 0
    total: int = 0
    lines: deque[str] = msgspec.field(default_factory=lambda: deque(maxlen=_KEPT_LINES))


class _Branch(msgspec.Struct):
    built: int = 0
    cached: int = 0
    failed: int = 0
    size: int = 0
    began: float = 0.0
    seconds: float = 0.0
    running: dict[str, _Running] = {}


class Board:
    """The state of a build.

    Times are seconds since the first event came, by the clock of who watches: events of resolving
    and of building count from different beginnings.
    """

    def __init__(self) -> None:
        self._branches: dict[str, _Branch] = {}
        self._where: dict[str, str] = {}
        self._message = ""

    @property
    def busy(self) -> bool:
        """Whether a vertex is running."""
        return any(branch.running for branch in self._branches.values())

    @property
    def active(self) -> bool:
        """Whether there is anything to show: a vertex runs, or sources are being resolved."""
        return self.busy or bool(self._message and not self._branches)

    def take(self, event: Event, now: float) -> None:
        """Take in one event that came at ``now``."""
        match event:
            case Started():
                self._message = ""
                branch = self._branches.setdefault(event.branch, _Branch(began=now))
                branch.running[event.vertex] = _Running(clean(event.name), now)
                self._where[event.vertex] = event.branch
            case Finished():
                self._finished(event, now)
            case Log():
                running = self._running(event.vertex)
                if running is not None and event.line.strip():
                    running.lines.append(clean(event.line.expandtabs()))
            case Transfer():
                self._transferred(event, now)
            case Message():
                self._message = clean(event.text)
            case Ended():
                pass

    def rows(self, now: float, *, width: int, height: int) -> list[Row]:
        """What to show, at most ``height`` rows; names are cut to fit ``width``."""
        header = [Row("building", duration(now), "bold", spins=True)]
        if self._message:
            header.append(Row(f"  {self._message}", style="dim"))
        room = height - len(header) - len(self._branches)
        budget = _Budget(max(0, room), sum(len(b.running) for b in self._branches.values()))
        rows = [row for name in self._sorted() for row in self._branch_rows(name, now, budget)]
        return [_fit(row, width) for row in (header + rows)[: max(1, height)]]

    def _sorted(self) -> list[str]:
        rank = {name: index for index, name in enumerate(_ORDER)}
        return sorted(self._branches, key=lambda name: rank.get(name, len(rank)))

    def _running(self, vertex: str) -> _Running | None:
        branch = self._branches.get(self._where.get(vertex, ""))
        return branch.running.get(vertex) if branch else None

    def _transferred(self, event: Transfer, now: float) -> None:
        """Bytes of a vertex; of something that is none (a push after the build) while they move."""
        running = self._running(event.vertex)
        if running is None:
            branch = self._branches.setdefault("", _Branch(began=now))
            running = _Running(clean(event.name), now)
            branch.running[event.vertex] = running
            self._where[event.vertex] = ""
        running.current, running.total = event.current, event.total

    def _finished(self, event: Finished, now: float) -> None:
        branch = self._branches.setdefault(event.branch, _Branch(began=now))
        branch.running.pop(event.vertex, None)
        self._where.pop(event.vertex, None)
        branch.seconds = max(branch.seconds, now - branch.began)
        if event.error:
            branch.failed += 1
        elif event.cached:
            branch.cached += 1
        else:
            branch.built += 1
            branch.size += event.size

    def _branch_rows(self, name: str, now: float, budget: _Budget) -> Iterator[Row]:
        branch = self._branches[name]
        title = f"  {clean(name) or 'image':<8} {_counts(branch)}"
        elapsed = now - branch.began if branch.running else branch.seconds
        style = "red" if branch.failed else "" if branch.running else "green"
        yield Row(
            title.rstrip(), duration(elapsed) if branch.built or branch.running else "", style
        )
        for index, one in enumerate(sorted(branch.running.values(), key=lambda one: one.began)):
            left = len(branch.running) - index
            if index == _SHOWN or not budget.vertex(last=left == 1):
                yield Row(f"    … and {left} more", style="dim")
                return
            yield Row(f"    {one.name}{_bytes(one)}", duration(now - one.began), "cyan", spins=True)
            for line in budget.lines(one):
                yield Row(f"      {line}", style="dim")


class _Budget:
    """Rows that are left for running vertices and their lines."""

    def __init__(self, rows: int, running: int) -> None:
        self._rows = rows
        self._spare = max(0, rows - running)
        self._each = max(1, self._spare // running) if running else 0

    def vertex(self, *, last: bool) -> bool:
        """Take the row of a vertex; not the last row, which says how many more there are."""
        if self._rows < (1 if last else 2):
            return False
        self._rows -= 1
        return True

    def lines(self, running: _Running) -> list[str]:
        """The last lines of a vertex that there is room for."""
        count = min(self._each, self._spare, len(running.lines))
        self._spare -= count
        self._rows -= count
        return list(running.lines)[len(running.lines) - count :]


def _counts(branch: _Branch) -> str:
    parts = [
        f"{branch.built} built" if branch.built else "",
        f"{branch.cached} cached" if branch.cached else "",
        f"{branch.failed} failed" if branch.failed else "",
        size(branch.size) if branch.size else "",
    ]
    return ", ".join(part for part in parts if part)


def _bytes(running: _Running) -> str:
    if running.current >= running.total > 0:
        return ""  # all is here; what still runs is something else
    if running.total:
        return f"  {size(running.current)} of {size(running.total)}"
    return f"  {size(running.current)}" if running.current else ""


def _fit(row: Row, width: int) -> Row:
    """``row`` with its left part cut so that the right part fits behind it."""
    mark = 2 if row.spins else 0
    room = width - 1 - mark - (len(row.right) + 1 if row.right else 0)
    return Row(shorten(row.left, max(8, room)), row.right, row.style, row.spins)
