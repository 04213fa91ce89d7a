"""Environments: which run, and how to get into them."""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterator, Mapping
from datetime import UTC, datetime
from ipaddress import ip_address
from typing import Any

from danlu.engine.contexts import find_current_context
from danlu.engine.environment_directory import EnvironmentSpec, list_environments
from danlu.engine.ssh.ssh_config import host_name
from danlu.environments.jupyter import SERVICE_NAME, format_jupyter_url
from danlu.environments.manage import (
    DamagedEnvironmentView,
    EnvironmentView,
    is_in_context,
    list_environment_views,
)
from danlu.remote.environment_list import ListedEnvironment, parse_environments
from danlu.ui.components import (
    image_path,
    render_action,
    render_age,
    render_command,
    render_reason,
    render_state,
)
from danlu.ui.html import Html, element, render_row, render_table
from danlu.ui.types import PageContent, PageRequest, Site
from danlu.util.danlu_program import LOCAL_CONTEXT
from danlu.util.human import pluralize, shorten_digest

_AGE_SECONDS = 5
_HEAD = ("Name", "State", "Since", "Connect", "Services", "Image", "Project", "Actions")


class EnvironmentsPage:
    """The environments of this machine, or those that it has in a cluster."""

    path = "/environments"
    menu = "Environments"

    async def read_stamp(self, site: Site, request: PageRequest) -> Hashable:
        """Return what changes with a spec or a state, and with the ages."""
        found = []
        for environment in list_environments(site.settings.paths.environments):
            files = environment.spec_file, environment.state_file
            times = [file.stat().st_mtime_ns if file.exists() else 0 for file in files]
            found.append((environment.name, environment.is_running(), *times))
        return tuple(found), time.monotonic() // _AGE_SECONDS

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return the table."""
        now = datetime.now(UTC)
        rows = [
            _render_row(view, listed, now)
            for view in _list_views(site)
            for listed in parse_environments([view.to_json()])
        ]
        place = "" if site.where == LOCAL_CONTEXT else f" in {site.where}"
        hint = f"No environments{place}; danlu up starts the project's."
        parts = {
            "head": element("h1", "Environments", place),
            "table": render_table(_HEAD, rows, caption="Environments", empty=hint),
        }
        return PageContent("Environments", parts)


def _list_views(site: Site) -> Iterator[EnvironmentView | DamagedEnvironmentView]:
    """Yield the environments that ``danlu ps`` lists, with ``--on`` those of the context."""
    paths = site.settings.paths
    is_here = site.where == LOCAL_CONTEXT
    named = None if is_here else find_current_context(paths, chosen=site.where)
    for view in list_environment_views(paths):
        spec = view.spec if isinstance(view, EnvironmentView) else None
        # A damaged one may be in any context.
        if named is None or spec is None or is_in_context(spec, named, paths):
            yield view


def _render_row(
    view: EnvironmentView | DamagedEnvironmentView, listed: ListedEnvironment, now: datetime
) -> Html:
    fields = view.to_json()
    spec = view.spec if isinstance(view, EnvironmentView) else None
    notes = [listed.reason if listed.reason not in listed.state else "", *fields["warnings"]]
    image = element("a", shorten_digest(fields["image"]), href=image_path(fields["image"]))
    return render_row(
        listed.name,
        (
            render_state(listed.phase),
            [element("div", note, class_="reason") for note in (*notes, listed.hint) if note],
        ),
        render_age(listed.ended or listed.started, now),
        _render_connections(spec, fields) if spec is not None else "",
        [_render_service(service) for service in fields["services"]],
        image if fields["image"] else "",
        render_reason(listed.project),
        element("td", _render_actions(listed), class_="actions"),
        data_key=listed.name,
    )


def _render_connections(spec: EnvironmentSpec, fields: Mapping[str, Any]) -> Html:
    """Return how to get in: ssh, JupyterLab, and links to the other ports.

    The address of JupyterLab contains its token. It is only in the link: pages are not cached, and
    no other server gets it as a referrer.
    """
    ssh = render_command(f"ssh {host_name(spec.name)}")
    if fields["phase"] != "Running":
        return ssh
    links = []
    if url := format_jupyter_url(spec):
        links.append(_render_link("JupyterLab", url))
    for port in fields["ports"]:
        if port["service"] != SERVICE_NAME:
            title = f"{port['service'] or 'port'} {port['host_port']}"
            links.append(_render_link(title, _format_url(port["address"], port["host_port"])))
    gpus = ", ".join(map(str, fields["assigned_gpus"]))
    return element(
        "div", ssh, element("p", links, class_="facts"), element("p", f"GPU {gpus}") if gpus else ""
    )


def _format_url(address: str, port: int) -> str:
    """Return the address for a browser on this machine; empty if it is not one."""
    try:
        host = ip_address(address)
    except ValueError:
        return ""
    shown = "127.0.0.1" if host.is_unspecified else f"[{host}]" if host.version == 6 else host
    return f"http://{shown}:{port}"


def _render_link(title: str, url: str) -> Html:
    return element("a", title, href=url or None, rel="noreferrer noopener", target="_blank")


def _render_service(service: Mapping[str, Any]) -> Html:
    state = "Running" if service["running"] else "Stopped"
    details = [
        f"exit code {service['exit_code']}" if service["exit_code"] is not None else "",
        pluralize(service["restarts"], "restart") if service["restarts"] else "",
        service["reason"],
    ]
    text = ", ".join(filter(None, details))
    return element(
        "div", service["name"], " ", render_state(state), element("span", f" {text}", class_="dim")
    )


def _render_actions(listed: ListedEnvironment) -> Html:
    name = listed.name
    if listed.phase == "Damaged":
        return Html()
    if listed.phase in ("Running", "Starting"):
        question = f"Stop {name}? What runs in it ends; its files stay."
        return render_action("stop", name, "Stop", confirm=question, kind="environments")
    return render_action("start", name, "Start", confirm=f"Start {name}?", kind="environments")
