"""What counts as an answer of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from danlu.jobs.kubernetes import silence
from danlu.jobs.kubernetes.silence import Silence
from danlu.kube.client import Selection
from danlu.kube.failures import ConnectionLost, error_of
from danlu.testing.kubernetes import Fault
from tests.jobs.kubernetes.support import Site, site_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    """A fake that nobody else asks, so that its faults are the test's own."""
    async with site_of(operator=False, kubelet=False) as site:
        yield site


@pytest.mark.parametrize(
    ("fault", "silent"),
    [
        (Fault(drop=True, times=9), True),
        (Fault(status=503), True),
        (Fault(delay=5.0), True),
        (Fault(status=403), False),
        (None, False),
    ],
    ids=["dropped", "overloaded", "late", "refused", "answered"],
)
async def test_only_what_comes_in_time_is_an_answer_also_a_refusal(
    site: Site, monkeypatch: pytest.MonkeyPatch, fault: Fault | None, silent: bool
) -> None:
    told: list[None] = []
    listener = Silence(site.client, Selection("default"), lambda: told.append(None))
    listener.failed(ConnectionLost("gone"))
    assert listener.warnings == ()
    if fault is not None:
        site.fake.faults.append(replace(fault))
    with monkeypatch.context() as patch:
        if fault is not None and fault.delay:
            patch.setattr(silence, "_PATIENCE", 0.1)
        await listener.listen()
    assert bool(listener.warnings) is silent
    site.fake.faults.clear()
    await listener.listen()
    assert listener.warnings == ()
    assert len(told) == (2 if silent else 0)


async def test_nobody_is_asked_where_nothing_or_something_else_failed(site: Site) -> None:
    listener = Silence(site.client, Selection("default"), lambda: None)
    listener.failed(error_of(403, b"{}", what="list pods"))
    before = len(site.fake.log)
    await listener.listen()
    assert len(site.fake.log) == before
