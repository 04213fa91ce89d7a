"""The kubeflow-training SDK, unmodified: its users' programs go on as they are."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.kube.access import Access
from danlu.kube.client import Selection
from danlu.testing.kubernetes import Kubelet
from danlu.testing.kubernetes.courses import Course
from tests.notebook.environments import NotSatisfiable, make
from tests.operator.clients.kubeconfigs import kubeconfig
from tests.operator.site import Site, jobs

pytestmark = [pytest.mark.anyio, pytest.mark.real]
PROGRAM = Path(__file__).parent / "clients" / "train.py"


@pytest.fixture(scope="session")
def sdk() -> Path:
    """Its environment; made once."""
    try:
        return make("kubeflow-sdk", ["kubeflow-training==1.9.4"])
    except NotSatisfiable as error:
        pytest.skip(f"the SDK cannot be had here: {error}")


async def test_jobs_are_made_followed_and_deleted(site: Site, sdk: Path, tmp_path: Path) -> None:
    if site.fake is not None:
        pytest.skip("the SDK is tried on a real server")
    config = kubeconfig(site.access, tmp_path / "config", namespace=site.space)
    async with site.operator_runs(), playing(site.access, site.space):
        found = await used(sdk, config, site.space)
    assert found.keys() == {"PyTorchJob", "TFJob", "XGBoostJob", "function"}
    for told in found.values():
        assert told["state"][-1] == "Succeeded"
        assert told["succeeded"] is True
        assert told["logs"]
    torch = found["PyTorchJob"]
    assert torch["reasons"][-1] == "PyTorchJobSucceeded"
    assert torch["pods"] == ["py-master-0", "py-worker-0", "py-worker-1"]
    assert torch["master"] == ["py-master-0"]
    assert torch["listed"] == ["py"]
    assert torch["replicas"]["Master"] == 1
    assert found["TFJob"]["pods"] == ["tf-ps-0", "tf-worker-0", "tf-worker-1"]
    assert found["XGBoostJob"]["master"] == ["xgb-master-0"]
    assert found["function"]["pods"] == ["function-master-0", "function-worker-0"]
    for kind in ("PyTorchJob", "TFJob", "XGBoostJob"):
        assert await site.names(jobs(kind)) == []


def playing(access: Access, space: str) -> Kubelet:
    """A kubelet whose containers write a line and end well."""
    course = Course(run=2.0, log="epoch 1\n")
    return Kubelet(access, behaviour=lambda pod: course, selection=Selection(space))


async def used(sdk: Path, config: Path, space: str) -> dict[str, Any]:
    """What the user's program found."""
    done = await anyio.run_process(
        [str(sdk / "bin" / "python"), str(PROGRAM), str(config), space],
        env={"PATH": os.environ["PATH"], "HOME": str(config.parent)},
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()[-3000:]
    found: dict[str, Any] = json.loads(done.stdout.decode().splitlines()[-1])
    return found
