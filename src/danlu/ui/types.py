"""What the pages of the user interface and its server agree on."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from danlu.engine.settings import Settings
from danlu.jobs.types import JobBackend
from danlu.ui.html import Html
from danlu.ui.job_catalog import JobCatalog
from danlu.ui.log_source import LogSources
from danlu.ui.machine_state import MachineState


@dataclass(frozen=True, slots=True)
class Site:
    """What pages read: the same objects as the commands.

    ``where`` is the name of the context whose jobs are shown, ``local`` for this machine.
    """

    settings: Settings
    where: str
    backend: JobBackend
    jobs: JobCatalog
    logs: LogSources
    machine: MachineState = field(default_factory=MachineState)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """A request for a page: the variables of its path, and the query."""

    path: str
    variables: Mapping[str, str] = field(default_factory=dict)
    query: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PageContent:
    """The main part of a page, from top to bottom by name.

    While the page is open, a part whose markup changes is replaced in the browser. Names are those
    of HTML's ``id``. A page that ``is_final`` is looked at only now and then.
    """

    title: str
    parts: Mapping[str, Html]
    is_final: bool = False


class Page(Protocol):
    """A page; see the package's docstring for how to add one."""

    path: str
    """The pattern of its path, such as ``/jobs/{name}``."""

    menu: str
    """Its title in the menu; empty if it is reached from another page."""

    async def read_stamp(self, site: Site, request: PageRequest) -> Hashable:
        """Return a value that differs when :meth:`load` would return something else; cheap."""

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return what the page shows now.

        Raises :class:`danlu.errors.DanluError`, which is shown instead of the page.
        """
