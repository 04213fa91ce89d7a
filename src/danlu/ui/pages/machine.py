"""This machine: cores, memory and GPUs with their users, the store, and the checks of doctor."""

from __future__ import annotations

import time
from collections.abc import Hashable
from datetime import UTC, datetime
from pathlib import Path

from danlu.diagnosis.doctor import DoctorCheck
from danlu.engine.gpu.usage import GpuUsage
from danlu.engine.resource_allocator import ledger_file, read_gpu_owners
from danlu.environments.manage import EnvironmentView, list_environment_views
from danlu.errors import UsageError
from danlu.jobs.local.host_resources import available_cores
from danlu.jobs.types import JobView
from danlu.ui.components import render_action, render_age, render_command, render_job_link
from danlu.ui.html import Html, element, join_html, render_table
from danlu.ui.job_catalog import JobFilter
from danlu.ui.machine_state import StoreSizes, read_load, read_memory
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
        return clock, site.machine.checked, site.machine.sizes

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return the parts of the page."""
        site.machine.refresh_sizes(site.settings.paths)
        gpus = site.machine.meter.measure()
        parts = {
            "head": join_html((element("h1", "This machine"), _render_place(site))),
            "resources": _render_resources(),
            "gpus": _render_gpus(gpus),
            "users": await _render_users(site),
            "store": _render_store(site.machine.sizes),
            "checks": _render_checks(site),
        }
        return PageContent("This machine", parts)


def _render_place(site: Site) -> Html:
    if site.where == LOCAL_CONTEXT:
        return Html()
    text = f"danlu ui runs here. The nodes of {site.where}, and what its jobs use, are not shown."
    return element("p", text, class_="dim")


def _render_bar(value: float, total: float, text: str) -> Html:
    share = round(100 * value / total) if total else 0
    bar = element("progress", f"{share} %", value=min(share, 100), max=100, aria_label=f"{share} %")
    return element("span", bar, " ", text)


def _render_resources() -> Html:
    cores, load = available_cores(), read_load()
    available, memory = read_memory()
    used = memory - available
    facts = {
        "cores": _render_bar(load, cores, f"load {load:.1f} on {cores:g}, over the last minute"),
        "memory": _render_bar(used, memory, f"{format_size(used)} of {format_size(memory)} in use"),
    }
    return element("dl", [(element("dt", name), element("dd", bar)) for name, bar in facts.items()])


def _render_gpus(gpus: list[GpuUsage]) -> Html:
    owners: dict[int, list[Html]] = {}
    for directory, indexes in read_gpu_owners(ledger_file()).items():
        for index in indexes:
            owners.setdefault(index, []).append(element("div", _render_owner(directory)))
    rows = [
        element(
            "tr",
            element("th", gpu.index, scope="row"),
            element("td", gpu.model),
            element("td", _render_utilization(gpu)),
            element(
                "td",
                _render_bar(
                    gpu.memory, gpu.total, f"{format_size(gpu.memory)} of {format_size(gpu.total)}"
                ),
            ),
            element("td", owners.get(gpu.index) or "free"),
        )
        for gpu in gpus
    ]
    head = ("GPU", "Model", "Use", "Memory", "Given to")
    table = render_table(head, rows, caption="GPUs")
    none = element("p", "This machine has no GPUs.", class_="dim")
    return join_html((element("h2", "GPUs"), table if rows else none))


def _render_utilization(gpu: GpuUsage) -> Html:
    if gpu.utilization is None:
        return element("span", _UNKNOWN, class_="dim")
    return _render_bar(gpu.utilization, 1, f"{gpu.utilization:.0%}")


def _render_owner(directory: Path) -> Html:
    if directory.parent.name == "jobs":
        return render_job_link(directory.name)
    if directory.parent.name == "environments":
        return element("a", directory.name, href="/environments")
    return element("span", "a danlu run")


async def _render_users(site: Site) -> Html:
    rows = [_render_environment(site, view) for view in _list_running(site)]
    if site.where == LOCAL_CONTEXT:
        found, _, _ = await site.jobs.list_rows(
            JobFilter(state="Running"), start=0, count=_MAX_JOBS
        )
        for row in found:
            try:
                rows.append(_render_job(await site.backend.view(row.name)))
            except UsageError:
                continue  # removed meanwhile
    head = ("Name", "What", "Cores", "Memory", "GPUs")
    table = render_table(head, rows, caption="Used by")
    none = element("p", "No job or environment is running.", class_="dim")
    return join_html((element("h2", "Used by"), table if rows else none))


def _list_running(site: Site) -> list[EnvironmentView]:
    return [
        view
        for view in list_environment_views(site.settings.paths)
        if isinstance(view, EnvironmentView) and view.state.phase == "Running"
    ]


def _render_environment(site: Site, view: EnvironmentView) -> Html:
    # Engines that hide their processes are measured by `danlu top` only.
    process = view.state.container
    cores, memory = site.machine.measure_container(process) if process is not None else (None, None)
    name = element("a", view.name, href="/environments")
    return _render_user(name, "environment", cores, memory, view.assigned_gpus)


def _render_job(view: JobView) -> Html:
    cores = [replica.cpu for replica in view.replicas if replica.cpu is not None]
    memory = [replica.memory for replica in view.replicas if replica.memory is not None]
    gpus = sorted({gpu for replica in view.replicas for gpu in replica.gpus})
    return _render_user(
        render_job_link(view.name),
        "job",
        sum(cores) if cores else None,
        sum(memory) if memory else None,
        tuple(gpus),
    )


def _render_user(
    name: Html, kind: str, cores: float | None, memory: int | None, gpus: tuple[int, ...]
) -> Html:
    return element(
        "tr",
        element("th", name, scope="row"),
        element("td", kind),
        element("td", _UNKNOWN if cores is None else f"{cores:.2f}", class_="number"),
        element("td", _UNKNOWN if memory is None else format_size(memory), class_="number"),
        element("td", ", ".join(map(str, gpus)) or _UNKNOWN),
    )


# -- store and checks -----------------------------------------------------------------------------


def _render_store(sizes: StoreSizes | None) -> Html:
    if sizes is None:
        return join_html((element("h2", "Store"), element("p", "–", class_="dim")))
    plan, usage = sizes.plan, sizes.usage
    counts = {"image": plan.images, "layer": plan.layers, "download": plan.downloads}
    unused = ", ".join(pluralize(count, noun) for noun, count in counts.items() if count)
    facts = {
        "layers": format_size(usage.layers),
        "blobs": format_size(usage.blobs),
        "downloads": format_size(sizes.downloads),
        "free disk space": format_size(sizes.free),
        "not needed": f"{format_size(plan.freed)}{f' ({unused})' if unused else ''}",
    }
    rows = [(element("dt", name), element("dd", text)) for name, text in facts.items()]
    note = "Images with a name keep what they need; the next build makes the rest again."
    prune = (element("p", note, class_="dim"), render_command("danlu image prune --all"))
    return join_html((element("h2", "Store"), element("dl", rows), prune if plan.freed else None))


def _render_checks(site: Site) -> Html:
    """Return the button that runs the checks, and what they found last."""
    checked = site.machine.checked
    head = element(
        "div",
        element("h2", "Checks"),
        element("span", "run ", render_age(checked, datetime.now(UTC)), " ago")
        if checked
        else None,
        render_action("check", "doctor", "Run danlu doctor", kind="machine"),
        class_="filters",
    )
    rows = [
        element(
            "tr",
            element("td", _render_result(check)),
            element("th", check.name, scope="row"),
            element("td", check.detail, class_="reason"),
            element("td", "" if check.ok else check.fix, class_="reason"),
        )
        for check in site.machine.checks
    ]
    table = render_table(("Result", "Check", "Found", "What to do"), rows, caption="Checks")
    return join_html((head, table if rows else None))


def _render_result(check: DoctorCheck) -> Html:
    if check.ok:
        return element("span", "ok", class_="state success")
    missing = ("missing", "muted") if check.optional else ("failed", "error")
    return element("span", missing[0], class_=f"state {missing[1]}")
