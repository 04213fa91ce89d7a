"""The pod of an environment."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from danlu.engine.environment_directory import EnvironmentSpec
from danlu.engine.kubernetes.pod import describe_end
from danlu.engine.kubernetes.settings import (
    SPEC_ANNOTATION,
    PodSettings,
    PodUser,
    PodVolume,
    count_gpus,
    render_pod,
)
from danlu.errors import UsageError
from danlu.graph.processor_level import render_node_terms
from danlu.kube.core_v1 import Pod
from danlu.kube.resources import PODS
from danlu.sandbox.types import ResourceLimits


def make_spec(**fields: Any) -> EnvironmentSpec:
    return EnvironmentSpec("digits", "sha256:1", datetime(2026, 1, 1, tzinfo=UTC), **fields)


def make_settings(**fields: Any) -> PodSettings:
    return PodSettings("danlu-digits-0", "test", "team", "registry/digits@sha256:2", **fields)


def test_limits_and_gpus_are_the_container_s() -> None:
    limits = ResourceLimits(cpu=1.5, memory=1 << 30)
    pod = render_pod(make_spec(limits=limits, gpus="2", shm_size=1 << 20), make_settings())
    (container,) = pod["spec"]["containers"]
    assert container["resources"] == {
        "limits": {"cpu": "1500m", "memory": "1073741824", "nvidia.com/gpu": "2"}
    }
    shm = {"medium": "Memory", "sizeLimit": "1048576"}
    assert {"name": "shm", "emptyDir": shm} in pod["spec"]["volumes"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]


def test_a_pod_gets_neither_the_node_s_files_nor_an_account() -> None:
    pod = render_pod(make_spec(project="/home/me/digits"), make_settings())
    assert not any("hostPath" in volume for volume in pod["spec"]["volumes"])
    assert pod["spec"]["automountServiceAccountToken"] is False
    assert pod["spec"]["restartPolicy"] == "Never"
    assert "/home/me" not in str(pod)


def test_the_project_is_on_the_claim_and_named_volumes_at_their_targets() -> None:
    settings = make_settings(
        claim="danlu-digits-0",
        volumes=(PodVolume("data", "/data"), PodVolume("data", "/again", readonly=True)),
        user=PodUser(1000, 1001, (50,)),
        node_selector={"gpu": "yes"},
        tolerations=({"key": "gpu", "operator": "Exists"},),
    )
    spec = render_pod(make_spec(project="/p"), settings)["spec"]
    claims = [
        volume["persistentVolumeClaim"]["claimName"]
        for volume in spec["volumes"]
        if "persistentVolumeClaim" in volume
    ]
    assert claims == ["danlu-digits-0", "data"]
    mounts = {mount["mountPath"]: mount for mount in spec["containers"][0]["volumeMounts"]}
    assert mounts["/again"]["readOnly"] is True
    assert mounts["/data"]["name"] == mounts["/again"]["name"]
    assert mounts["/workspace"]["subPath"] == "workspace"
    assert spec["securityContext"]["fsGroup"] == 1001
    assert spec["containers"][0]["securityContext"] == {"runAsUser": 1000, "runAsGroup": 1001}
    assert spec["nodeSelector"] == {"gpu": "yes"}
    assert "affinity" not in spec
    leveled = msgspec.structs.replace(settings, architecture="amd64", level="x86-64-v4")
    required = render_pod(make_spec(project="/p"), leveled)["spec"]["affinity"]["nodeAffinity"]
    assert list(required.values()) == [
        {"nodeSelectorTerms": render_node_terms("amd64", "x86-64-v4")}
    ]
    assert spec["tolerations"] == [{"key": "gpu", "operator": "Exists"}]


def test_the_annotation_changes_with_the_settings_of_the_pod() -> None:
    def digest(spec: EnvironmentSpec) -> str:
        text: str = render_pod(spec, make_settings())["metadata"]["annotations"][SPEC_ANNOTATION]
        return text

    assert digest(make_spec()) == digest(make_spec())
    assert digest(make_spec()) != digest(make_spec(environment={"A": "1"}))


@pytest.mark.parametrize("gpus", ["all", "0,1", "GPU-1"])
def test_which_gpus_a_pod_gets_is_the_cluster_s_choice(gpus: str) -> None:
    with pytest.raises(UsageError, match="the cluster chooses"):
        count_gpus(gpus)


def make_pod(**status: Any) -> Pod:
    metadata = {"name": "danlu-digits-0", "uid": "1"}
    return PODS.with_model(Pod).decode(
        msgspec.json.encode({"metadata": metadata, "status": status})
    )


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (
            {"phase": "Failed", "reason": "Evicted", "message": "The node was low on memory."},
            "Evicted: The node was low on memory.",
        ),
        (
            {
                "phase": "Running",
                "conditions": [
                    {
                        "type": "DisruptionTarget",
                        "status": "True",
                        "reason": "DeletionByTaintManager",
                        "message": "Taint manager: deleting due to NoExecute taint",
                    }
                ],
            },
            "removed from its node: DeletionByTaintManager: Taint manager",
        ),
        (
            {
                "phase": "Failed",
                "containerStatuses": [
                    {
                        "name": "environment",
                        "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled"}},
                    }
                ],
            },
            "OOMKilled (exit code 137)",
        ),
    ],
)
def test_why_a_pod_ended_has_kubernetes_reason(status: dict[str, Any], words: str) -> None:
    assert words in describe_end(make_pod(**status))


def test_a_running_pod_has_not_ended() -> None:
    running = {"name": "environment", "state": {"running": {}}}
    assert describe_end(make_pod(phase="Running", containerStatuses=[running])) == ""
