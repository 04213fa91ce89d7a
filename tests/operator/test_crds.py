"""The CRDs: accepted by a server, which rejects what danlu rejects."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig
from danlu.kube.errors import ApiError, Invalid
from danlu.kube.patch import merge_patch
from danlu.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, Resource
from danlu.kube.transport import ApiRequest
from danlu.kube.types import Manifest
from danlu.kube.watch import ListOptions
from danlu.operator.crds import custom_resource_definition, custom_resource_definitions
from danlu.training.document import read_manifest_file
from danlu.training.framework import Framework
from danlu.training.manifest import read_job
from danlu.training.registry import BUILT_IN_FRAMEWORKS, find_framework
from danlu.training.types import MANAGER
from tests.fakes.kubernetes import FakeKubernetes
from tests.kube.objects import eventually
from tests.kube.servers import ApiServer, real_server
from tests.training.manifests import KINDS, SIZES, find_mistakes, manifest
from tests.training.mistakes import jobs, kinds, pods

pytestmark = pytest.mark.anyio
EXAMPLES = sorted((Path(__file__).parents[1] / "training" / "examples").glob("*.yaml"))
_numbers = itertools.count(1)


def resource(framework: Framework) -> Resource[Manifest]:
    return Resource("kubeflow.org", "v1", framework.plural, framework.kind, Manifest)


@pytest.fixture(scope="module")
def real_crds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    with real_server(tmp_path_factory.mktemp("crds")) as server:
        yield server


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.real)])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    if request.param == "fake":
        async with FakeKubernetes() as fake, Client(ClusterConfig(server=fake.url)) as client:
            yield await create_crds(client)
    else:
        async with Client(request.getfixturevalue("real_crds").access) as client:
            yield await create_crds(client)


@pytest.fixture
async def space(client: Client) -> str:
    name = f"test-{next(_numbers)}"
    await client.create(NAMESPACES, NAMESPACES.to_manifest({"metadata": {"name": name}}))
    return name


async def create_crds(client: Client) -> Client:
    for crd in custom_resource_definitions(BUILT_IN_FRAMEWORKS):
        await client.create_or_patch(CUSTOM_RESOURCE_DEFINITIONS, crd)

    async def is_available() -> bool:
        try:
            for framework in BUILT_IN_FRAMEWORKS:
                await client.list(resource(framework), ListOptions("default"))
        except ApiError:
            return False
        return True

    await eventually(is_available)
    return client


def with_namespace(document: dict[str, Any], space: str) -> dict[str, Any]:
    return {**document, "metadata": {**document["metadata"], "namespace": space}}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_of_every_kind_is_kept_as_it_was_written(
    client: Client, space: str, kind: str
) -> None:
    content = manifest(kind)
    result = await client.create(resource(KINDS[kind]), with_namespace(content, space))
    assert result["spec"] == content["spec"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
async def test_kubeflow_s_examples_lose_nothing(client: Client, space: str, path: Path) -> None:
    content = read_manifest_file(path.read_text(), path.name).job
    framework = find_framework(content["kind"])
    plain = msgspec.json.decode(msgspec.json.encode(dict(content)))
    result = await client.create(resource(framework), with_namespace(plain, space))
    kept = read_job({**result, "metadata": content["metadata"]}, framework)
    assert kept == read_job(content, framework)


@pytest.mark.parametrize("kind", ["PyTorchJob", "PaddleJob", "JAXJob"])
async def test_a_job_that_can_grow_is_scaled(client: Client, space: str, kind: str) -> None:
    framework = KINDS[kind]
    await client.create(resource(framework), with_namespace(manifest(kind), space))
    patch = merge_patch({"spec": {"replicas": 5}})
    scale = Resource("kubeflow.org", "v1", framework.plural, "Scale", Manifest)
    await client.patch(scale, "job", patch, namespace=space, subresource="scale")
    result = await client.get(resource(framework), "job", namespace=space)
    assert result["spec"][framework.replicas_field]["Worker"]["replicas"] == 5


def test_a_definition_is_small_enough_for_plain_apply() -> None:
    for framework in BUILT_IN_FRAMEWORKS:
        assert len(msgspec.json.encode(custom_resource_definition(framework))) < 30_000


async def test_values_out_of_bounds_are_rejected(client: Client, space: str) -> None:
    wrong = with_namespace(manifest("PyTorchJob"), space)
    wrong["spec"]["runPolicy"] = {"cleanPodPolicy": "Some", "backoffLimit": -1}
    with pytest.raises(Invalid) as caught:
        await client.create(resource(KINDS["PyTorchJob"]), wrong)
    fields = {cause.field for cause in caught.value.causes}
    assert {"spec.runPolicy.cleanPodPolicy", "spec.runPolicy.backoffLimit"} <= fields


# -- what danlu refuses, a server refuses where it can --------------------------------------------

#: Found by danlu alone, which answers with the condition Failed. What a template holds besides its
#: containers' names and images is not looked at by the server either.
OURS_ALONE = {
    "TF chief and master",
    "generated name",  # there is a name by then
    "no worker of them",
    "null replica spec",  # dropped, as null is everywhere
    "processes twice",
    "status",  # dropped: it has a way of its own
    "success policy",
}
MISTAKES = {
    **{case: ("PyTorchJob", *mistake) for case, mistake in {**jobs.CASES, **pods.CASES}.items()},
    **kinds.OF_KINDS,
}


async def test_the_server_rejects_what_danlu_rejects(client: Client, space: str) -> None:
    if not client.config.server.startswith("https"):
        pytest.skip("the fake API server does not evaluate CEL rules")
    accepted = set()
    for case, (kind, spoil, path, *_) in MISTAKES.items():
        document = with_namespace(manifest(kind), space)
        spoil(document)
        if await server_accepts(client, kind, document) and ".template." not in path:
            accepted.add(case)
    assert accepted == OURS_ALONE


async def server_accepts(client: Client, kind: str, document: Manifest) -> bool:
    """Return whether a server accepts it with strict validation, as kubectl requests."""
    namespace = document["metadata"].get("namespace", "default")
    request = ApiRequest(
        method="POST",
        path=resource(KINDS[kind]).path(namespace=namespace),
        query={"dryRun": "All", "fieldValidation": "Strict"},
        body=msgspec.json.encode(document),
    )
    try:
        await client.transport.send(request)
    except ApiError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
def test_singleton_replica_types_are_checked_by_server_and_operator_alike(kind: str) -> None:
    for type in KINDS[kind].singleton_types:
        others = {name: number for name, number in SIZES[kind].items() if name != type}
        result = find_mistakes(manifest(kind, **{type: 2}, **others), KINDS[kind])
        assert f"[{type}].replicas" in "".join(error.path for error in result)


@pytest.mark.parametrize("field", ["managedBy", "queue"])
async def test_immutable_fields_of_a_job_cannot_change(
    client: Client, space: str, field: str
) -> None:
    if not client.config.server.startswith("https"):
        pytest.skip("the fake API server does not evaluate CEL rules")
    first = {"managedBy": MANAGER, "schedulingPolicy": {"queue": "a"}}
    document = with_namespace(manifest(), space)
    document["spec"]["runPolicy"] = first
    torch = resource(KINDS["PyTorchJob"])
    await client.create(torch, document)
    changes = {
        "managedBy": [{"managedBy": None}, {"managedBy": "kueue.x-k8s.io/multikueue"}],
        "queue": [{"schedulingPolicy": None}, {"schedulingPolicy": {"queue": "b"}}],
    }
    for change in changes[field]:
        with pytest.raises(Invalid, match=f"{field}: field is immutable"):
            await client.patch(
                torch, "job", merge_patch({"spec": {"runPolicy": change}}), namespace=space
            )
    more = merge_patch({"spec": {"runPolicy": {"suspend": True}}})
    assert (await client.patch(torch, "job", more, namespace=space))["spec"]["runPolicy"]["suspend"]
