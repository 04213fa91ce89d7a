"""Many jobs of all kinds at once, with a simulated kubelet: all finish."""

from __future__ import annotations

from collections import Counter

import pytest

from danlu.kube.manager import Manager
from danlu.kube.watch import ListOptions
from tests.fakes.kubernetes import FakeKubelet, complete_after
from tests.operator.operator_namespace import OperatorNamespace, jobs
from tests.training.manifests import SIZES

pytestmark = pytest.mark.anyio
EACH = 2


async def test_jobs_of_all_kinds_succeed_side_by_side(
    site: OperatorNamespace, operator: Manager
) -> None:
    kubelet = FakeKubelet(
        site.access,
        behaviour=complete_after(0.5),
        clock=site.clock,
        selection=ListOptions(site.space),
        logs=None if site.fake is None else site.fake.cluster.logs,
    )
    before = Counter() if site.fake is None else site.fake.counts
    async with kubelet:
        for kind in SIZES:
            for number in range(EACH):
                await site.submit(kind, f"{kind.lower()}-{number}", run={"cleanPodPolicy": "None"})

        async def all_are_done() -> bool:
            return all(
                [
                    await site.state(kind, f"{kind.lower()}-{number}") == "Succeeded"
                    for kind in SIZES
                    for number in range(EACH)
                ]
            )

        await site.eventually(all_are_done)
    assert len(await site.pods()) == EACH * sum(sum(sizes.values()) for sizes in SIZES.values())
    if site.fake is not None:
        spent = site.fake.counts - before
        for kind in SIZES:
            plural = jobs(kind).plural
            assert spent["patch", f"{plural}/status"] <= EACH * 7
