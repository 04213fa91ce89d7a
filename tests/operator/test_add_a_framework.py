"""A framework in one file of another package is a kind that the operator runs and scales."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

from danlu.kube.patch import merge_patch
from danlu.kube.resources import CUSTOM_RESOURCE_DEFINITIONS
from danlu.operator.crds import custom_resource_definition
from danlu.operator.types import job_resource
from danlu.training.registry import find_framework, list_frameworks
from tests.operator.operator_namespace import OperatorNamespace

pytestmark = pytest.mark.anyio
EXAMPLE = Path(__file__).parents[2] / "examples" / "add-a-framework" / "danlu_lightgbm.py"


@pytest.fixture
def example_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Install the example's package as an installer does."""
    shutil.copy(EXAMPLE, tmp_path)
    info = tmp_path / "danlu_lightgbm-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: danlu-lightgbm\nVersion: 1.0\n")
    entry = "[danlu.frameworks]\nlightgbm = danlu_lightgbm:FRAMEWORK\n"
    (info / "entry_points.txt").write_text(entry)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "modules", dict(sys.modules))


@pytest.mark.usefixtures("example_package")
async def test_a_kind_of_a_plugin_has_a_crd_and_is_reconciled(fake_site: OperatorNamespace) -> None:
    site = fake_site
    assert "LightGBMJob" in [framework.kind for framework in list_frameworks()]
    framework = find_framework("LightGBMJob")
    await site.client.create(CUSTOM_RESOURCE_DEFINITIONS, custom_resource_definition(framework))
    container = {"name": "lightgbm", "image": "example/train:1"}
    worker = {"replicas": 2, "template": {"spec": {"containers": [container]}}}
    async with site.operator_runs():
        await site.create(framework, {framework.replicas_field: {"Worker": worker}})
        await site.wait_for_pods("job-worker-0", "job-worker-1")
        await site.wait_for_services("job-worker-0", "job-worker-1")
        env = (await site.pod("job-worker-1"))["spec"]["containers"][0]["env"]
        machines = "job-worker-0:12400,job-worker-1:12400"
        assert {"name": "LIGHTGBM_MACHINES", "value": machines} in env
        await site.client.patch(
            job_resource(framework),
            "job",
            merge_patch({"spec": {"replicas": 3}}),
            namespace=site.space,
            subresource="scale",
        )
        await site.wait_for_pods("job-worker-0", "job-worker-1", "job-worker-2")
        await site.run()
        await site.wait_for_state("Running", "LightGBMJob")
        await site.end("job-worker-1")
        await site.wait_for_state("Succeeded", "LightGBMJob")
