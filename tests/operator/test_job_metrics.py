"""Metrics of jobs: counted once, across restarts of the operator."""

from __future__ import annotations

import pytest

from danlu.kube.metrics import MetricsRegistry, render_metrics
from tests.operator.operator_namespace import OperatorNamespace

pytestmark = pytest.mark.anyio


def numbers(metrics: MetricsRegistry) -> dict[str, str]:
    """The counters of jobs that are not 0, by their word."""
    results = {}
    for line in render_metrics(metrics).splitlines():
        name, _, value = line.rpartition(" ")
        if name.startswith("training_operator_jobs_"):
            word = name.removeprefix("training_operator_jobs_").partition("_total")[0]
            results[word] = value
    return results


async def test_a_job_is_counted_once_though_its_operator_is_restarted(
    fake_site: OperatorNamespace,
) -> None:
    site = fake_site
    async with site.operator_runs() as first:
        await site.submit("PyTorchJob", Worker=1, policy="OnFailure")
        await site.wait_for_pods("job-worker-0")
        await site.run()
        await site.wait_for_state("Running")
        before = await site.uid("job-worker-0")
        await site.end("job-worker-0", code=1)
        await site.wait_for_recreation("job-worker-0", before)
        assert numbers(first.metrics) == {"created": "1.0", "restarted": "1.0"}
        labels = f'{{framework="pytorch",job_namespace="{site.space}"}}'
        assert f"training_operator_jobs_created_total{labels} 1" in render_metrics(first.metrics)
    async with site.operator_runs() as second:
        await site.end("job-worker-0")
        await site.wait_for_state("Succeeded")
        assert numbers(second.metrics) == {"successful": "1.0"}
        assert "danlu_job_seconds_count" in render_metrics(second.metrics)
        await site.change({"spec": {"runPolicy": {"ttlSecondsAfterFinished": 0}}})
        await site.eventually(site.is_gone)

        async def metrics_are_complete() -> bool:
            return numbers(second.metrics) == {"successful": "1.0", "deleted": "1.0"}

        await site.eventually(metrics_are_complete)
