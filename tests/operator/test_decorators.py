"""Pods decorated over HTTP: what may be changed, and what happens if the webhook fails."""

from __future__ import annotations

import logging
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

import anyio
import pytest
from aiohttp import web

from danlu.errors import UsageError
from danlu.kube.config import load_pem
from danlu.operator.flags import parse_decorators
from danlu.operator.pod_decorators import open_decorators
from danlu.operator.types import DecoratorError, DecoratorSpec, PodDecorator
from danlu.util.certificate import create_certificate, extract_certificate
from tests.conftest import ROOT
from tests.operator.operator_namespace import OperatorNamespace

pytestmark = pytest.mark.anyio
Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
JOB = {"kind": "PyTorchJob", "metadata": {"name": "job"}}
SECRET = "hunter2"


def pod() -> dict[str, Any]:
    labels = {"training.kubeflow.org/job-name": "job", "team": "a"}
    container = {"name": "pytorch", "env": [{"name": "TOKEN", "value": SECRET}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "job-worker-0", "namespace": "default", "labels": labels},
        "spec": {"containers": [container]},
    }


@asynccontextmanager
async def serve_answers(answer: Answer, pem: bytes = b"") -> AsyncIterator[str]:
    """A server of pods, over TLS with a key and its certificate; gives its URL."""
    tls = None
    if pem:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        load_pem(tls, pem)
    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
        yield f"http{'s' if pem else ''}://127.0.0.1:{runner.addresses[0][1]}/"
    finally:
        await runner.cleanup()


@asynccontextmanager
async def open_decorator(answer: Answer, **options: Any) -> AsyncIterator[PodDecorator]:
    async with serve_answers(answer) as address:
        url = address.replace("//", f"//user:{SECRET}@")
        async with open_decorators([DecoratorSpec(url, **options)]) as (decorator,):
            yield decorator


def serve_patch(*operations: dict[str, Any]) -> Answer:
    async def answer(request: web.Request) -> web.Response:
        asked = await request.json()
        assert asked["job"] == JOB
        assert asked["pod"] == pod()
        return web.json_response({"patch": list(operations)})

    return answer


async def refuse(request: web.Request) -> web.Response:
    return web.Response(status=403, text=SECRET)


async def fail(request: web.Request) -> web.Response:
    return web.Response(status=500, text=SECRET)


async def send_secret(request: web.Request) -> web.Response:
    return web.Response(text=f"<{SECRET}>")


async def send_too_much(request: web.Request) -> web.Response:
    return web.Response(body=b" " * (2 << 20))


async def redirect(request: web.Request) -> web.Response:
    raise web.HTTPFound("/other")


async def never_answer(request: web.Request) -> web.Response:
    await anyio.sleep(60)
    raise AssertionError


async def send_nothing(request: web.Request) -> web.Response:
    return web.Response(status=204)


async def test_a_server_changes_a_pod() -> None:
    tolerate = {"op": "add", "path": "/spec/tolerations", "value": [{"key": "gpu"}]}
    value = pod()
    async with open_decorator(serve_patch(tolerate)) as decorator:
        changed = await decorator(JOB, value)
    assert changed["spec"]["tolerations"] == [{"key": "gpu"}]
    assert value == pod()


async def test_an_empty_answer_changes_nothing() -> None:
    async with open_decorator(send_nothing) as decorator:
        assert await decorator(JOB, pod()) == pod()


async def test_a_decorator_is_called_only_for_its_kinds() -> None:
    async with open_decorator(refuse, kinds=("tfjob",)) as decorator:
        assert await decorator(JOB, pod()) == pod()
        with pytest.raises(DecoratorError):
            await decorator({**JOB, "kind": "TFJob"}, pod())


FAILURES: dict[str, Answer] = {
    "refused": refuse,
    "failed": fail,
    "no JSON": send_secret,
    "too much": send_too_much,
    "redirected": redirect,
    "late": never_answer,
    "renamed": serve_patch({"op": "replace", "path": "/metadata/name", "value": "x"}),
    "moved": serve_patch({"op": "replace", "path": "/metadata/namespace", "value": "x"}),
    "adopted": serve_patch({"op": "add", "path": "/metadata/ownerReferences", "value": []}),
    "unlabelled": serve_patch({"op": "remove", "path": "/metadata/labels"}),
    "labelled as ours": serve_patch(
        {"op": "add", "path": "/metadata/labels/training.kubeflow.org~1x", "value": "y"}
    ),
    "no such path": serve_patch({"op": "remove", "path": "/spec/nothing"}),
    "no operation": serve_patch({"op": "burn", "path": "/spec"}),
}


@pytest.mark.parametrize("case", FAILURES)
async def test_a_failing_decorator_blocks_the_pod_with_failure_policy_fail(case: str) -> None:
    async with open_decorator(FAILURES[case], timeout_seconds=0.3) as decorator:
        with pytest.raises(DecoratorError, match="decorator http://127") as caught:
            await decorator(JOB, pod())
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("case", FAILURES)
async def test_a_failing_decorator_is_ignored_with_failure_policy_ignore(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    policy: Any = "Ignore"
    with caplog.at_level(logging.DEBUG):
        async with open_decorator(
            FAILURES[case], timeout_seconds=0.3, failure_policy=policy
        ) as decorator:
            assert await decorator(JOB, pod()) == pod()
    assert "job-worker-0 without decorator" in caplog.text
    assert SECRET not in caplog.text


async def test_a_server_is_trusted_by_its_authority() -> None:
    pem, other = [await create_certificate(["IP:127.0.0.1"], days=1) for _ in range(2)]
    assert pem is not None
    assert other is not None
    async with serve_answers(send_nothing, pem) as url:
        ca = extract_certificate(pem).decode()
        async with open_decorators([DecoratorSpec(url, ca=ca)]) as (decorator,):
            assert await decorator(JOB, pod()) == pod()
        for wrong in ("", extract_certificate(other).decode()):
            async with open_decorators([DecoratorSpec(url, ca=wrong)]) as (decorator,):
                with pytest.raises(DecoratorError, match="Certificate"):
                    await decorator(JOB, pod())


async def test_an_unreachable_decorator_follows_the_failure_policy() -> None:
    async with open_decorators([DecoratorSpec("http://127.0.0.1:1/")]) as (decorator,):
        with pytest.raises(DecoratorError, match="cannot reach"):
            await decorator(JOB, pod())


@pytest.mark.parametrize("url", ["", "ftp://host/", "host:80", "http:///path"])
async def test_an_invalid_decorator_url_is_an_error_at_the_start(url: str) -> None:
    with pytest.raises(UsageError):
        async with open_decorators([DecoratorSpec(url)]):
            pass


async def test_an_invalid_ca_is_an_error_at_the_start() -> None:
    with pytest.raises(UsageError, match="invalid CA"):
        async with open_decorators([DecoratorSpec("https://host/", ca="none")]):
            pass


def test_a_file_lists_decorators() -> None:
    text = "- url: http://a/\n  timeoutSeconds: 2\n  kinds: [TFJob]\n- url: http://b/\n"
    first, second = parse_decorators(text, "decorators.yaml")
    assert first == DecoratorSpec("http://a/", timeout_seconds=2, kinds=("TFJob",))
    assert second == DecoratorSpec("http://b/")


@pytest.mark.parametrize(
    "text", ["- {}", "- url: a\n  colour: red", "- url: a\n  failurePolicy: Try", "- 7"]
)
def test_an_invalid_decorator_file_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match=r"decorators\.yaml"):
        parse_decorators(text, "decorators.yaml")


def example() -> ModuleType:
    spec = spec_from_file_location("decorator", ROOT / "examples" / "decorator" / "decorator.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


async def test_the_example_decorates_a_pod() -> None:
    async def answer(request: web.Request) -> web.Response:
        asked = await request.json()
        return web.json_response({"patch": [*example().decorate(asked["job"], asked["pod"])]})

    async with open_decorator(answer) as decorator:
        changed = await decorator({**JOB, "metadata": {"labels": {"team": "vision"}}}, pod())
    (container,) = changed["spec"]["containers"]
    assert changed["spec"]["priorityClassName"] == "training-vision"
    assert container["volumeMounts"] == [{"name": "shm", "mountPath": "/dev/shm"}]
    assert changed["spec"]["volumes"][0]["emptyDir"]["medium"] == "Memory"


def test_the_example_s_configuration_is_read() -> None:
    path = ROOT / "examples" / "decorator" / "decorators.yaml"
    (spec,) = parse_decorators(path.read_text(), path.name)
    assert spec.timeout_seconds == 5


# -- with the operator ----------------------------------------------------------------------------


async def test_every_pod_of_a_job_is_decorated_in_turn(site: OperatorNamespace) -> None:
    async def first(request: web.Request) -> web.Response:
        asked = await request.json()
        assert asked["job"]["metadata"]["name"] == "job"
        value = {"name": "cache", "emptyDir": {}}
        patch = {"op": "add", "path": "/spec/volumes", "value": [value]}
        return web.json_response({"patch": [patch]})

    async def second(request: web.Request) -> web.Response:
        assert (await request.json())["pod"]["spec"]["volumes"][0]["name"] == "cache"
        patch = {"op": "add", "path": "/metadata/annotations", "value": {"seen": "yes"}}
        return web.json_response({"patch": [patch]})

    async with serve_answers(first) as first_url, serve_answers(second) as second_url:
        specs = (DecoratorSpec(first_url), DecoratorSpec(second_url))
        async with site.operator_runs(asking=specs):
            await site.submit(Master=1, Worker=2)
            names = ("job-master-0", "job-worker-0", "job-worker-1")
            await site.wait_for_pods(*names)
    for name in names:
        result = await site.pod(name)
        assert result["metadata"]["annotations"]["seen"] == "yes"
        assert "cache" in [volume["name"] for volume in result["spec"]["volumes"]]


async def test_a_failing_decorator_leaves_the_job_pending_with_an_event(
    site: OperatorNamespace,
) -> None:
    works = False

    async def answer(request: web.Request) -> web.Response:
        return web.Response(status=204 if works else 500)

    async with serve_answers(answer) as url, site.operator_runs(asking=[DecoratorSpec(url)]):
        await site.submit(Worker=1)
        output = await site.wait_for_event("FailedCreatePod")
        assert "answered 500" in output
        assert await site.pods() == []
        works = True
        await site.wait_for_pods("job-worker-0")
