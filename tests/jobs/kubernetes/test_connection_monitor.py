"""Which responses count as an answer of a cluster."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from danlu.jobs.kubernetes import job_watcher
from danlu.jobs.kubernetes.job_watcher import ConnectionMonitor
from danlu.kube.errors import ConnectionLost, error_from_response
from danlu.kube.watch import ListOptions
from tests.fakes.kubernetes import ApiFault
from tests.jobs.kubernetes.support import JobNamespace, site_of

pytestmark = pytest.mark.anyio


@pytest.fixture
async def site() -> AsyncIterator[JobNamespace]:
    """A fake without other clients, so that its faults hit only the test's requests."""
    async with site_of(operator=False, kubelet=False) as site:
        yield site


@pytest.mark.parametrize(
    ("fault", "silent"),
    [
        (ApiFault(drop=True, times=9), True),
        (ApiFault(status=503), True),
        (ApiFault(delay=5.0), True),
        (ApiFault(status=403), False),
        (None, False),
    ],
    ids=["dropped", "overloaded", "late", "refused", "answered"],
)
async def test_an_error_in_time_is_a_response_but_a_timeout_is_not(
    site: JobNamespace, monkeypatch: pytest.MonkeyPatch, fault: ApiFault | None, silent: bool
) -> None:
    output: list[None] = []
    listener = ConnectionMonitor(site.client, ListOptions("default"), lambda: output.append(None))
    listener.record_failure(ConnectionLost("gone"))
    assert listener.warnings == ()
    if fault is not None:
        site.fake.faults.append(replace(fault))
    with monkeypatch.context() as patch:
        if fault is not None and fault.delay:
            patch.setattr(job_watcher, "_PROBE_TIMEOUT", 0.1)
        await listener.probe()
    assert bool(listener.warnings) is silent
    site.fake.faults.clear()
    await listener.probe()
    assert listener.warnings == ()
    assert len(output) == (2 if silent else 0)


async def test_probe_sends_nothing_without_a_connection_failure(site: JobNamespace) -> None:
    listener = ConnectionMonitor(site.client, ListOptions("default"), lambda: None)
    listener.record_failure(error_from_response(403, b"{}", what="list pods"))
    before = len(site.fake.log)
    await listener.probe()
    assert len(site.fake.log) == before
