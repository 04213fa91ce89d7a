"""Served models on a cluster: their objects, updates, what is reported of them, and errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import Any

import anyio
import msgspec
import pytest

from danlu.errors import OutsideError, StepFailed, UsageError
from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig
from danlu.kube.errors import Forbidden, NotFound
from danlu.kube.patch import merge_patch
from danlu.kube.resources import (
    CUSTOM_RESOURCE_DEFINITIONS,
    DEPLOYMENTS,
    HORIZONTAL_POD_AUTOSCALERS,
    PODS,
    SERVICES,
)
from danlu.serving.cluster.client import ClusterServing, ServedLine
from danlu.serving.cluster.manifests import (
    DRAIN_SECONDS,
    INFERENCE_SERVICES,
    SERVING_RUNTIMES,
    ModelDeployment,
    ReplicaRange,
    check_name,
    choose_name,
    parse_replicas,
    render_deployment,
    render_kserve,
)
from tests.fakes.kubernetes import ApiFault, FakeKubelet, FakeKubernetes, PodScript, SimulatedPod
from tests.serving.deployment_controller import run_deployments

pytestmark = [pytest.mark.anyio, pytest.mark.timeout(60)]

DIGEST = "registry.example/team/digits@sha256:" + "1" * 64
OTHER = "registry.example/team/digits@sha256:" + "2" * 64


def model(**changes: Any) -> ModelDeployment:
    first = ModelDeployment("digits", "default", DIGEST, "digits:1", ("/usr/local/bin/serve",))
    return msgspec.structs.replace(first, **changes)


@dataclass
class Site:
    """A fake cluster with a controller of Deployments and a kubelet that plays ``script``."""

    fake: FakeKubernetes
    client: Client
    serving: ClusterServing
    script: Callable[[SimulatedPod], PodScript] = lambda pod: PodScript()
    can_serve: bool = True


@pytest.fixture
async def site() -> AsyncIterator[Site]:
    async with FakeKubernetes() as fake:
        access = ClusterConfig(server=fake.url, namespace="default")
        async with Client(access, manager="tests") as client:
            site = Site(fake, client, ClusterServing(access))
            kubelet = FakeKubelet(
                access,
                behaviour=lambda pod: site.script(pod),
                back_off=60,
                logs=fake.cluster.logs,
            )
            async with kubelet, run_deployments(access, can_serve=lambda: site.can_serve):
                yield site


# -- manifests ------------------------------------------------------------------------------------


def test_an_update_loses_no_request_by_its_manifest() -> None:
    deployment, service = render_deployment(model(timeout=90.0))
    spec = deployment["spec"]
    assert spec["strategy"]["rollingUpdate"] == {"maxUnavailable": 0, "maxSurge": 1}
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert container["readinessProbe"]["httpGet"]["path"] == "/v2/health/ready"
    # The server may still be asked after the pod's end was requested, and then has time to answer.
    assert container["lifecycle"]["preStop"]["sleep"]["seconds"] == DRAIN_SECONDS
    assert pod["terminationGracePeriodSeconds"] >= DRAIN_SECONDS + 90
    assert service["spec"]["selector"] == spec["selector"]["matchLabels"]
    assert spec["selector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items()


def test_a_range_of_replicas_has_an_autoscaler_and_keeps_the_current_number() -> None:
    ranged = model(replicas=ReplicaRange(2, 10), cpu=1.0)
    deployment, _, autoscaler = render_deployment(ranged)
    assert "replicas" not in deployment["spec"]
    assert autoscaler["spec"]["scaleTargetRef"]["name"] == "digits"
    assert (autoscaler["spec"]["minReplicas"], autoscaler["spec"]["maxReplicas"]) == (2, 10)
    for current, kept in ((1, 2), (7, 7), (12, 10)):
        assert render_deployment(ranged, current=current)[0]["spec"]["replicas"] == kept
    assert render_deployment(model(), current=7)[0]["spec"]["replicas"] == 1


def test_resources_secret_and_nodes_are_those_that_were_asked_for() -> None:
    tolerations = ({"key": "gpu", "operator": "Exists"},)
    asked = model(
        cpu=0.5,
        memory=1 << 30,
        gpus=2,
        pull_secret="registry",
        node_selector={"pool": "a"},
        tolerations=tolerations,
    )
    pod = render_deployment(asked)[0]["spec"]["template"]["spec"]
    assert pod["containers"][0]["resources"] == {
        "requests": {"cpu": "500m", "memory": "1073741824"},
        "limits": {"memory": "1073741824", "nvidia.com/gpu": "2"},
    }
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert (pod["nodeSelector"], pod["tolerations"]) == ({"pool": "a"}, [dict(tolerations[0])])
    bare = render_deployment(model())[0]["spec"]["template"]["spec"]
    assert not {"imagePullSecrets", "nodeSelector", "tolerations"} & set(bare)
    assert "resources" not in bare["containers"][0]


def test_kserve_gets_a_runtime_and_a_service_that_uses_it() -> None:
    runtime, service = render_kserve(model(replicas=ReplicaRange(1, 3), gpus=1))
    assert (runtime["kind"], service["kind"]) == ("ServingRuntime", "InferenceService")
    predictor = service["spec"]["predictor"]
    assert predictor["model"]["runtime"] == runtime["metadata"]["name"]
    named = [form["name"] for form in runtime["spec"]["supportedModelFormats"]]
    assert [predictor["model"]["modelFormat"]["name"]] == named
    (container,) = runtime["spec"]["containers"]
    assert container["name"] == "kserve-container"
    assert container["image"] == DIGEST
    # Knative's services refuse them.
    assert not {"lifecycle", "startupProbe"} & set(container)
    assert (predictor["minReplicas"], predictor["maxReplicas"]) == (1, 3)


@pytest.mark.parametrize("text", ["0", "-1", "3-2", "2-", "x", "1-2-3", "²", "9999999"])
def test_an_invalid_number_of_replicas_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="replicas"):
        parse_replicas(text)


def test_names_are_those_of_services() -> None:
    assert choose_name("team/Digits_v2") == "digits-v2"
    assert choose_name("2024-model") == "model-2024-model"
    assert check_name(choose_name("x" * 80)) == "x" * 63
    for name in ("", "1a", "A", "a_b", "a.", "-a", "a-", "x" * 64, "a/b"):
        with pytest.raises(UsageError):
            check_name(name)


# -- on a cluster ---------------------------------------------------------------------------------


async def test_a_model_is_served_updated_and_removed(site: Site) -> None:
    assert not await site.serving.apply(model(replicas=ReplicaRange(2, 2)))
    first = await site.serving.wait_until_ready("digits")
    assert (first.state, first.ready, first.replicas, first.image) == ("Ready", 2, 2, "digits:1")
    assert first.url == "http://digits.default.svc"
    # The same again changes nothing.
    before = await site.client.get(DEPLOYMENTS, "digits", namespace="default")
    assert await site.serving.apply(model(replicas=ReplicaRange(2, 2)))
    after = await site.client.get(DEPLOYMENTS, "digits", namespace="default")
    assert before["metadata"]["generation"] == after["metadata"]["generation"]

    await site.serving.apply(model(image=OTHER, image_name="digits:2"))
    view = await site.serving.wait_until_ready("digits")
    assert (view.image, view.ready) == ("digits:2", 1)
    pods = (await site.client.list(PODS)).items
    assert {pod["spec"]["containers"][0]["image"] for pod in pods} == {OTHER}
    assert [found.name for found in await site.serving.views()] == ["digits"]

    await site.serving.remove("digits")
    assert await site.serving.views() == []
    assert (await site.client.list(SERVICES)).items == ()
    with pytest.raises(UsageError, match="no served model digits"):
        await site.serving.remove("digits")


async def test_an_autoscaler_comes_and_goes_with_the_range(site: Site) -> None:
    await site.serving.apply(model(replicas=ReplicaRange(3, 3)))
    await site.serving.apply(model(replicas=ReplicaRange(2, 10), cpu=1.0))
    deployment = await site.client.get(DEPLOYMENTS, "digits", namespace="default")
    assert deployment["spec"]["replicas"] == 3
    await site.client.get(HORIZONTAL_POD_AUTOSCALERS, "digits", namespace="default")
    await site.serving.apply(model())
    with pytest.raises(NotFound):
        await site.client.get(HORIZONTAL_POD_AUTOSCALERS, "digits", namespace="default")


async def test_the_reason_of_a_pod_that_does_not_start_is_the_error(site: Site) -> None:
    await site.serving.apply(model())
    await site.serving.wait_until_ready("digits")
    site.script = lambda pod: PodScript(waiting="ImagePullBackOff")
    await site.serving.apply(model(image=OTHER, image_name="digits:2"))
    with pytest.raises(OutsideError, match="ImagePullBackOff: cannot pull the image") as caught:
        await site.serving.wait_until_ready("digits")
    assert "the earlier version still answers" in caught.value.hint
    view = await site.serving.view("digits")
    assert view.state == "Updating"
    assert "ImagePullBackOff" in view.reason
    assert [(pod.state, pod.current) for pod in view.pods if pod.state == "Ready"] == [
        ("Ready", False)
    ]


async def test_a_server_that_ends_shows_its_last_lines(site: Site) -> None:
    site.can_serve = False
    site.script = lambda pod: PodScript(run=0, exit_code=1, log="\x1b[31mno model\x1b[0m\n")
    await site.serving.apply(model())
    with pytest.raises(StepFailed, match="CrashLoopBackOff") as caught:
        await site.serving.wait_until_ready("digits")
    assert "no model" in caught.value.details


async def test_a_quota_is_named(site: Site) -> None:
    await site.serving.apply(model())
    await site.serving.wait_until_ready("digits")
    # As the deployment controller reports it (kubernetes, deployment_util.go).
    message = 'pods "digits-1" is forbidden: exceeded quota: small, requested: pods=1'
    condition = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": message,
    }
    await site.client.patch(
        DEPLOYMENTS,
        "digits",
        merge_patch({"spec": {"replicas": 2}}),
        namespace="default",
    )
    await site.client.patch(
        DEPLOYMENTS,
        "digits",
        merge_patch({"status": {"conditions": [condition]}}),
        namespace="default",
        subresource="status",
    )
    site.script = lambda pod: PodScript(start=None)
    with pytest.raises(OutsideError, match=r"FailedCreate: .*exceeded quota"):
        await site.serving.wait_until_ready("digits")


async def test_objects_of_others_are_not_touched(site: Site) -> None:
    mine = {
        "metadata": {"name": "digits", "namespace": "default"},
        "spec": {"ports": [{"port": 1}]},
    }
    await site.client.create(SERVICES, SERVICES.to_manifest(mine))
    with pytest.raises(UsageError, match="Service digits exists in namespace default") as caught:
        await site.serving.apply(model())
    assert "--name" in caught.value.hint
    with pytest.raises(UsageError, match="no served model"):
        await site.serving.remove("digits")
    assert (await site.client.list(DEPLOYMENTS)).items == ()


async def test_what_is_refused_leaves_nothing_half_done(site: Site) -> None:
    site.fake.faults.append(ApiFault(verb="patch", resource="services", times=9, status=403))
    with pytest.raises(Forbidden):
        await site.serving.apply(model())
    assert (await site.client.list(DEPLOYMENTS)).items == ()


async def test_missing_parts_of_a_cluster_are_named(site: Site) -> None:
    with pytest.raises(OutsideError, match="does not have KServe"):
        await site.serving.apply(model(), kserve=True)
    elsewhere = ClusterServing(ClusterConfig(server=site.fake.url), namespace="nowhere")
    with pytest.raises(OutsideError, match="namespace nowhere does not exist"):
        await elsewhere.apply(model(namespace="nowhere"))


async def test_kserve_is_listed_and_removed(site: Site) -> None:
    for resource in (INFERENCE_SERVICES, SERVING_RUNTIMES):
        await site.client.create(CUSTOM_RESOURCE_DEFINITIONS, _definition(resource))
    await site.serving.apply(model(replicas=ReplicaRange(2, 2)), kserve=True)
    assert [view.kind for view in await site.serving.views()] == ["InferenceService"]
    status = {
        "observedGeneration": 1,
        "url": "http://digits-default.example",
        "conditions": [{"type": "Ready", "status": "True"}],
    }
    await site.client.patch(
        INFERENCE_SERVICES,
        "digits",
        merge_patch({"status": status}),
        namespace="default",
        subresource="status",
    )
    view = await site.serving.wait_until_ready("digits")
    assert (view.kind, view.url) == ("InferenceService", "http://digits-default.example")
    with pytest.raises(UsageError, match="is served by a InferenceService"):
        await site.serving.apply(model())
    await site.serving.remove("digits")
    assert (await site.client.list(SERVING_RUNTIMES)).items == ()


def _definition(resource: Any) -> dict[str, Any]:
    free = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return CUSTOM_RESOURCE_DEFINITIONS.to_manifest(
        {
            "metadata": {"name": resource.display_name},
            "spec": {
                "group": resource.group,
                "scope": "Namespaced",
                "names": {
                    "plural": resource.plural,
                    "singular": resource.kind.lower(),
                    "kind": resource.kind,
                    "listKind": f"{resource.kind}List",
                },
                "versions": [
                    {
                        "name": resource.version,
                        "served": True,
                        "storage": True,
                        "subresources": {"status": {}},
                        "schema": {
                            "openAPIV3Schema": {
                                "type": "object",
                                "properties": {"spec": free, "status": free},
                            }
                        },
                    }
                ],
            },
        }
    )


async def test_logs_are_those_of_all_pods_and_of_later_ones(site: Site) -> None:
    site.script = lambda pod: PodScript(log=f"listening {pod.metadata.name}\n\x1b]0;title\x07x\n")
    await site.serving.apply(model(replicas=ReplicaRange(2, 2)))
    await site.serving.wait_until_ready("digits")
    lines = [line async for line in site.serving.logs("digits")]
    assert [line.text.partition(" ")[0] for line in lines] == ["listening", "x"] * 2
    assert len({line.pod for line in lines}) == 2
    last = [line.text async for line in site.serving.logs("digits", tail=1)]
    assert last == ["x", "x"]
    pods: set[str] = set()
    with anyio.move_on_after(50):
        async with anyio.create_task_group() as group:

            def note(line: ServedLine) -> None:
                pods.add(line.pod)
                if len(pods) == 2:
                    two.set()
                if len(pods) == 4:
                    group.cancel_scope.cancel()

            two = anyio.Event()
            group.start_soon(site.serving.follow_logs, "digits", note)
            await two.wait()
            await site.serving.apply(model(replicas=ReplicaRange(2, 2), image=OTHER))
    assert len(pods) == 4


async def test_waiting_reports_what_pods_wait_for(site: Site) -> None:
    site.script = lambda pod: PodScript(unschedulable="0/3 nodes are available")
    await site.serving.apply(model())
    texts: list[str] = []
    with anyio.move_on_after(30) as scope:

        def report(text: str) -> None:
            texts.append(text)
            if "Unschedulable" in text:
                scope.cancel()

        await site.serving.wait_until_ready("digits", report)
    assert "0/3 nodes are available" in texts[-1]
