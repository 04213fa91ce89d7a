"""The pages, in the order of the menu. Adding one is a file and a line here."""

from __future__ import annotations

from collections.abc import Sequence

from danlu.ui.pages.compare import ComparePage
from danlu.ui.pages.environments import EnvironmentsPage
from danlu.ui.pages.images import ImageDiffPage, ImagePage, ImagesPage
from danlu.ui.pages.job import JobPage
from danlu.ui.pages.jobs import JobsPage
from danlu.ui.pages.machine import MachinePage
from danlu.ui.pages.sweeps import SweepPage, SweepsPage
from danlu.ui.types import Page

PAGES: Sequence[Page] = (
    JobsPage(),
    JobPage(),
    ComparePage(),
    SweepsPage(),
    SweepPage(),
    EnvironmentsPage(),
    ImagesPage(),
    ImagePage(),
    ImageDiffPage(),
    MachinePage(),
)
