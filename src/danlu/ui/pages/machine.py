"""This machine: cores, memory and GPUs with their users, the store, and the checks of doctor."""

from __future__ import annotations

import os
import time
from collections.abc import Hashable
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from danlu.diagnosis.doctor import DoctorCheck
from danlu.engine.resource_allocator import ledger_file, read_gpu_owners
from danlu.environments.manage import EnvironmentView, list_environment_views
from danlu.errors import UsageError
from danlu.jobs.local.host_resources import available_cores
from danlu.ui.components import (
    render_action,
    render_age,
    render_command,
    render_facts,
    render_job_link,
    render_reason,
)
from danlu.ui.html import Html, element, join_html, render_row, render_table
from danlu.ui.job_catalog import JobFilter
from danlu.ui.types import PageContent, PageRequest, Site
from danlu.util.danlu_program import LOCAL_CONTEXT
from danlu.util.human import format_size, pluralize

_REFRESH_SECONDS, _MAX_JOBS = 2, 200
_UNKNOWN = "–"


class MachinePage:
    """What the machine has, who uses it, and whether danlu has what it needs."""

    path = "/machine"
    menu = "This machine"

    async def read_stamp(self, site: Site, request: PageRequest) -> Hashable:
        """Return what changes every two seconds, and when a result arrives."""
        clock = time.monotonic() // _REFRESH_SECONDS
        return clock, site.machine.checked, site.machine.prunable

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return the parts of the page."""
        site.machine.refresh_store(site.settings.paths)
        note = (
            f"danlu ui runs here. The nodes of {site.where}, and what its jobs use, are not shown."
        )
        parts = {
            "head": element("h1", "This machine"),
            "place": element("p", note, class_="dim") if site.where != LOCAL_CONTEXT else Html(),
            "resources": _render_resources(),
            "gpus": _render_gpus(site),
            "users": await _render_users(site),
            "store": _render_store(site),
            "checks": _render_checks(site),
        }
        return PageContent("This machine", parts)


def _render_bar(value: float, total: float, text: str) -> Html:
    share = round(100 * value / total) if total else 0
    bar = element("progress", f"{share} %", value=min(share, 100), max=100, aria_label=f"{share} %")
    return element("span", bar, " ", text)


def _render_bytes(used: int, total: int) -> Html:
    return _render_bar(used, total, f"{format_size(used)} of {format_size(total)}")


def _render_resources() -> Html:
    cores, load = available_cores(), os.getloadavg()[0]
    lines = (line.split() for line in Path("/proc/meminfo").read_text().splitlines())
    memory = {words[0]: int(words[1]) << 10 for words in lines}
    total = memory["MemTotal:"]
    facts = {
        "cores": _render_bar(load, cores, f"load {load:.1f} on {cores:g}, over the last minute"),
        "memory": _render_bytes(total - memory["MemAvailable:"], total),
    }
    return render_facts(facts)


def _render_gpus(site: Site) -> Html:
    owners: dict[int, list[Html]] = {}
    for directory, indexes in read_gpu_owners(ledger_file()).items():
        for index in indexes:
            owners.setdefault(index, []).append(element("div", _render_owner(directory)))
    rows = [
        render_row(
            gpu.index,
            gpu.model,
            _render_bar(gpu.utilization, 1, f"{gpu.utilization:.0%}")
            if gpu.utilization is not None
            else _UNKNOWN,
            _render_bytes(gpu.memory, gpu.total),
            owners.get(gpu.index) or "free",
        )
        for gpu in site.machine.meter.measure()
    ]
    head = ("GPU", "Model", "Use", "Memory", "Given to")
    table = render_table(head, rows, caption="GPUs", empty="This machine has no GPUs.")
    return join_html((element("h2", "GPUs"), table))


def _render_owner(directory: Path) -> Html:
    if directory.parent.name == "jobs":
        return render_job_link(directory.name)
    if directory.parent.name == "environments":
        return element("a", directory.name, href="/environments")
    return element("span", "a danlu run")


async def _render_users(site: Site) -> Html:
    rows = []
    for view in list_environment_views(site.settings.paths):
        if isinstance(view, EnvironmentView) and view.state.phase == "Running":
            # Engines that hide their processes are measured by `danlu top` only.
            process = view.state.container
            cores, memory = site.machine.measure_container(process) if process else (None, None)
            name = element("a", view.name, href="/environments")
            rows.append(_render_user(name, "environment", cores, memory, view.assigned_gpus))
    wanted = JobFilter(state="Running")
    is_here = site.where == LOCAL_CONTEXT
    jobs = (await site.jobs.list_rows(wanted, start=0, count=_MAX_JOBS))[0] if is_here else []
    for row in jobs:
        with suppress(UsageError):  # removed meanwhile
            replicas = (await site.backend.view(row.name)).replicas
            gpus = tuple(sorted({gpu for replica in replicas for gpu in replica.gpus}))
            cores = sum(replica.cpu or 0 for replica in replicas)
            memory = sum(replica.memory or 0 for replica in replicas)
            rows.append(_render_user(render_job_link(row.name), "job", cores, memory, gpus))
    head, empty = ("Name", "What", "Cores", "Memory", "GPUs"), "No job or environment is running."
    table = render_table(head, rows, caption="Used by", empty=empty)
    return join_html((element("h2", "Used by"), table))


def _render_user(
    name: Html, kind: str, cores: float | None, memory: int | None, gpus: tuple[int, ...]
) -> Html:
    shown_cores = _UNKNOWN if cores is None else f"{cores:.2f}"
    shown_memory = _UNKNOWN if memory is None else format_size(memory)
    return render_row(name, kind, shown_cores, shown_memory, ", ".join(map(str, gpus)) or _UNKNOWN)


def _render_store(site: Site) -> Html:
    plan = site.machine.prunable
    if plan is None:
        return join_html((element("h2", "Store"), element("p", _UNKNOWN, class_="dim")))
    counts = {"image": plan.images, "layer": plan.layers, "download": plan.downloads}
    unused = ", ".join(pluralize(count, noun) for noun, count in counts.items() if count)
    facts = {
        "in use": format_size(plan.kept),
        "not needed": f"{format_size(plan.freed)}{f' ({unused})' if unused else ''}",
        "free disk space": format_size(site.machine.free),
    }
    note = "Images with a name keep what they need; the next build makes the rest again."
    prune = (element("p", note, class_="dim"), render_command("danlu image prune --all"))
    return join_html((element("h2", "Store"), render_facts(facts), prune if plan.freed else None))


def _render_checks(site: Site) -> Html:
    """Return the button that runs the checks, and what they found last."""
    checked = site.machine.checked
    age = (render_age(checked, datetime.now(UTC)), " ago") if checked else "not run yet"
    button = render_action("check", "doctor", "Run danlu doctor", kind="machine")
    head = element("div", element("h2", "Checks"), element("span", age), button, class_="filters")
    rows = [
        render_row(
            check.name,
            _render_result(check),
            render_reason(check.detail),
            render_reason("" if check.ok else check.fix),
        )
        for check in site.machine.checks
    ]
    titles = ("Check", "Result", "Found", "What to do")
    return join_html((head, render_table(titles, rows, caption="Checks", empty="")))


def _render_result(check: DoctorCheck) -> Html:
    word, style = ("missing", "muted") if check.optional else ("failed", "error")
    word, style = ("ok", "success") if check.ok else (word, style)
    return element("span", word, class_=f"state {style}")
