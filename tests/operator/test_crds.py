"""The definitions of the kinds: accepted by a server, and refusing there what danlu refuses."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from danlu.kube.access import Access
from danlu.kube.client import Client, Selection
from danlu.kube.failures import ApiError, Invalid
from danlu.kube.patches import merge_patch
from danlu.kube.resources import CUSTOM_RESOURCE_DEFINITIONS, NAMESPACES, Resource
from danlu.kube.types import Document
from danlu.operator.crds import definition, definitions
from danlu.testing.kubernetes import FakeKubernetes
from danlu.training.framework import Framework
from danlu.training.manifest import read_documents, read_job
from danlu.training.registry import BUILT_IN, framework_of
from tests.kube.objects import eventually
from tests.kube.servers import Server, binaries, real_server
from tests.training.manifests import KINDS, manifest

pytestmark = pytest.mark.anyio
EXAMPLES = sorted((Path(__file__).parents[1] / "training" / "examples").glob("*.yaml"))
_numbers = itertools.count(1)


def resource(framework: Framework) -> Resource[Document]:
    return Resource("kubeflow.org", "v1", framework.plural, framework.kind, Document)


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
def real_crds(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    if binaries() is None:
        pytest.skip("no kube-apiserver and etcd here (KUBEBUILDER_ASSETS)")
    with real_server(tmp_path_factory.mktemp("crds")) as server:
        yield server


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.real)])
async def client(request: pytest.FixtureRequest) -> AsyncIterator[Client]:
    if request.param == "fake":
        async with FakeKubernetes() as fake, Client(Access(server=fake.url)) as client:
            yield await defined(client)
    else:
        async with Client(request.getfixturevalue("real_crds").access) as client:
            yield await defined(client)


@pytest.fixture
async def space(client: Client) -> str:
    name = f"test-{next(_numbers)}"
    await client.create(NAMESPACES, NAMESPACES.document({"metadata": {"name": name}}))
    return name


async def defined(client: Client) -> Client:
    for one in definitions(BUILT_IN):
        await client.apply(CUSTOM_RESOURCE_DEFINITIONS, one, force=True)

    async def served() -> bool:
        try:
            for one in BUILT_IN:
                await client.list(resource(one), Selection("default"))
        except ApiError:
            return False
        return True

    await eventually(served)
    return client


def placed(document: dict[str, Any], space: str) -> dict[str, Any]:
    return {**document, "metadata": {**document["metadata"], "namespace": space}}


@pytest.mark.parametrize("kind", KINDS)
async def test_a_job_of_every_kind_is_kept_as_it_was_written(
    client: Client, space: str, kind: str
) -> None:
    written = manifest(kind)
    made = await client.create(resource(KINDS[kind]), placed(written, space))
    assert made["spec"] == written["spec"]


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
async def test_kubeflow_s_examples_lose_nothing(client: Client, space: str, path: Path) -> None:
    written = read_documents(path.read_text(), path.name).job
    framework = framework_of(written["kind"])
    plain = msgspec.json.decode(msgspec.json.encode(dict(written)))
    made = await client.create(resource(framework), placed(plain, space))
    kept = read_job({**made, "metadata": written["metadata"]}, framework)
    assert kept == read_job(written, framework)


@pytest.mark.parametrize("kind", ["PyTorchJob", "PaddleJob", "JAXJob"])
async def test_a_job_that_can_grow_is_scaled(client: Client, space: str, kind: str) -> None:
    framework = KINDS[kind]
    await client.create(resource(framework), placed(manifest(kind), space))
    patch = merge_patch({"spec": {"replicas": 5}})
    scale = Resource("kubeflow.org", "v1", framework.plural, "Scale", Document)
    await client.patch(scale, "job", patch, namespace=space, subresource="scale")
    made = await client.get(resource(framework), "job", namespace=space)
    assert made["spec"][framework.replicas_field]["Worker"]["replicas"] == 5


def test_a_definition_is_small_enough_for_plain_apply() -> None:
    for framework in BUILT_IN:
        assert len(msgspec.json.encode(definition(framework))) < 30_000


async def test_what_is_out_of_bounds_is_refused(client: Client, space: str) -> None:
    wrong = placed(manifest("PyTorchJob"), space)
    wrong["spec"]["runPolicy"] = {"cleanPodPolicy": "Some", "backoffLimit": -1}
    with pytest.raises(Invalid) as caught:
        await client.create(resource(KINDS["PyTorchJob"]), wrong)
    fields = {one.field for one in caught.value.causes}
    assert {"spec.runPolicy.cleanPodPolicy", "spec.runPolicy.backoffLimit"} <= fields
