"""Requests that fail: errors by type, retries that the server asked for, certificates."""

from __future__ import annotations

import asyncio
import ssl
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from danlu.errors import OutsideError, TemporaryError, UsageError
from danlu.kube.client import Client
from danlu.kube.config import ClusterConfig, StaticCredentials
from danlu.kube.errors import (
    ApiError,
    Conflict,
    ConnectionLost,
    Forbidden,
    Gone,
    InternalError,
    Invalid,
    NotFound,
    RequestTooLarge,
    Retry,
    ServerTimeout,
    ServiceUnavailable,
    TooManyRequests,
    Unauthorized,
    error_from_response,
)
from danlu.kube.ratelimit import TokenBucket
from danlu.kube.resources import CONFIG_MAPS, PODS
from danlu.kube.transport import ApiRequest
from danlu.kube.watch import ListOptions
from tests.fakes.kubernetes import ApiFault, FakeKubernetes, VirtualClock
from tests.kube.objects import config_map, eventually

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize(
    ("code", "kind", "retry"),
    [
        (401, Unauthorized, Retry.NEVER),
        (403, Forbidden, Retry.NEVER),
        (404, NotFound, Retry.REREAD),
        (409, Conflict, Retry.REREAD),
        (410, Gone, Retry.REREAD),
        (413, RequestTooLarge, Retry.NEVER),
        (422, Invalid, Retry.NEVER),
        (429, TooManyRequests, Retry.SAME),
        (500, InternalError, Retry.SAME),
        (502, InternalError, Retry.SAME),
        (503, ServiceUnavailable, Retry.SAME),
        (504, ServerTimeout, Retry.SAME),
        (418, ApiError, Retry.NEVER),
    ],
)
def test_each_status_code_has_an_error_type_that_decides_the_retry(
    code: int, kind: type[ApiError], retry: Retry
) -> None:
    error = error_from_response(code, b"<html>a proxy's words\x1b[31m</html>", what="get x")
    assert type(error) is kind
    assert error.retry is retry
    assert isinstance(error, TemporaryError) is (retry is Retry.SAME)
    assert "\x1b" not in str(error)
    assert str(error).startswith("get x: <html>")


@pytest.mark.parametrize(
    ("code", "message", "advice"),
    [
        (401, "Unauthorized", "log in to the cluster again"),
        (403, 'pods is forbidden: User "a" cannot list resource "pods"', "kubectl auth can-i"),
        (403, "exceeded quota: gpus", ""),
    ],
)
def test_unauthorized_requests_get_a_hint(code: int, message: str, advice: str) -> None:
    hint = error_from_response(code, message.encode()).hint
    assert advice in hint
    assert bool(advice) == bool(hint)


async def test_retry_after_of_the_server_is_honoured(
    fake: FakeKubernetes, clock: VirtualClock
) -> None:
    fake.faults.append(ApiFault(verb="get", times=2, status=429, retry_after=7))
    await anyio.lowlevel.checkpoint()
    async with Client(ClusterConfig(server=fake.url), clock=clock) as client:
        fake.cluster.create(fake.cluster.kind("", "v1", "configmaps"), "default", make_object("a"))
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: client.get(CONFIG_MAPS, "a", namespace="default"))
            for number in (1, 2):
                await eventually(lambda: clock.pending_timers == 1)
                await clock.advance(6.9)
                assert fake.counts["get", "configmaps"] == number
                await clock.advance(0.1)
    assert fake.counts["get", "configmaps"] == 3


def make_object(name: str) -> dict[str, dict[str, str]]:
    return {"metadata": {"name": name}}


async def test_a_refusal_without_a_time_is_not_repeated(kube: Client, fake: FakeKubernetes) -> None:
    for status, kind in ((500, InternalError), (429, TooManyRequests), (503, ServiceUnavailable)):
        fake.faults.append(ApiFault(verb="create", status=status))
        with pytest.raises(kind):
            await kube.create(CONFIG_MAPS, config_map("a", "default"))
    assert fake.counts["create", "configmaps"] == 3


async def test_waiting_has_an_end(fake: FakeKubernetes, clock: VirtualClock) -> None:
    fake.faults.append(ApiFault(times=1000, status=429, retry_after=1))
    async with Client(ClusterConfig(server=fake.url), clock=clock) as client:

        async def get() -> None:
            with pytest.raises(TooManyRequests) as caught:
                await client.get(PODS, "a", namespace="default")
            assert caught.value.retry_after == 1.0

        async with anyio.create_task_group() as group:
            group.start_soon(get)
            for _ in range(10):
                await eventually(lambda: clock.pending_timers == 1)
                await clock.advance(1.0)
    assert fake.counts["get", "pods"] == 11


async def test_after_a_dropped_connection_the_outcome_of_a_request_is_unknown(
    kube: Client, fake: FakeKubernetes
) -> None:
    fake.faults.append(ApiFault(verb="create", drop=True, after=True))
    with pytest.raises(ConnectionLost):
        await kube.create(CONFIG_MAPS, config_map("done", "default"))
    fake.faults.append(ApiFault(verb="create", drop=True))
    with pytest.raises(ConnectionLost):
        await kube.create(CONFIG_MAPS, config_map("not-done", "default"))
    result = (await kube.list(CONFIG_MAPS, ListOptions("default"))).items
    assert [obj["metadata"]["name"] for obj in result] == ["done"]


async def test_an_unreachable_server_is_an_error_with_a_hint() -> None:
    async with Client(ClusterConfig(server="http://127.0.0.1:1")) as client:
        with pytest.raises(ConnectionLost, match="cannot reach API server") as caught:
            await client.get(PODS, "a", namespace="default")
    assert "kubeconfig" in caught.value.hint


async def test_a_token_that_was_rotated_is_read_after_one_refusal(
    fake: FakeKubernetes, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    path.write_text("old")
    fake.tokens = {"old"}
    async with Client(
        ClusterConfig(server=fake.url, credentials=StaticCredentials(token_file=path))
    ) as client:
        await client.list(PODS, ListOptions("default"))
        fake.tokens = {"new"}
        path.write_text("new")
        await client.list(PODS, ListOptions("default"))
        path.write_text("wrong")
        fake.tokens = {"newer"}
        with pytest.raises(Unauthorized):
            await client.list(PODS, ListOptions("default"))


async def test_requests_keep_to_their_rate(fake: FakeKubernetes, clock: VirtualClock) -> None:
    async with (
        Client(ClusterConfig(server=fake.url), rate=2.0, burst=3, clock=clock) as client,
        anyio.create_task_group() as group,
    ):
        for _ in range(7):
            group.start_soon(client.list, PODS)
        await eventually(lambda: fake.counts["list", "pods"] == 3)
        for number in (4, 5, 6, 7):
            await clock.advance(0.49)
            assert fake.counts["list", "pods"] == number - 1
            await clock.advance(0.01)
            await eventually(lambda number=number: fake.counts["list", "pods"] == number)


async def test_a_bucket_gives_tokens_at_its_rate(clock: VirtualClock) -> None:
    bucket = TokenBucket(10.0, 2, clock=clock)
    assert [bucket.reserve() for _ in range(4)] == pytest.approx([0.0, 0.0, 0.1, 0.2])
    assert not bucket.take()
    await clock.advance(10.0)
    assert [bucket.take() for _ in range(3)] == [True, True, False]


async def test_each_attempt_is_measured(fake: FakeKubernetes) -> None:
    output: list[tuple[str, int]] = []
    meter = lambda method, code, seconds: output.append((method, code))  # noqa: E731
    async with Client(ClusterConfig(server=fake.url), meter=meter) as client:
        await client.create(CONFIG_MAPS, config_map("a", "default"))
        with pytest.raises(NotFound):
            await client.get(CONFIG_MAPS, "b", namespace="default")
    assert output == [("POST", 201), ("GET", 404)]


async def test_an_oversized_object_is_too_large(kube: Client) -> None:
    with pytest.raises(RequestTooLarge):
        await kube.create(CONFIG_MAPS, config_map("big", "default", a="x" * (4 << 20)))


async def test_an_undecodable_response_is_not_an_api_error(kube: Client) -> None:
    await kube.create(CONFIG_MAPS, config_map("a", "default"))
    with pytest.raises(OutsideError, match="invalid response") as caught:
        await kube.get(CONFIG_MAPS.with_model(int), "a", namespace="default")
    assert not isinstance(caught.value, ApiError | TemporaryError)


def certificate(directory: Path, name: str) -> Path:
    """Key and self-signed certificate of a server or client at this machine's address."""
    path = directory / f"{name}.pem"
    result = subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"),
            *("-nodes", "-days", "2", "-subj", f"/CN={name}", "-keyout", "-", "-out", "-"),
            *("-addext", f"subjectAltName=DNS:{name},IP:127.0.0.1"),
            *("-addext", "keyUsage=critical,digitalSignature,keyCertSign"),
        ],
        check=True,
        capture_output=True,
    )
    path.write_bytes(result.stdout)
    return path


def split_chunks(path: Path) -> tuple[bytes, bytes]:
    """Certificate and key."""
    whole = path.read_bytes()
    at = whole.index(b"-----BEGIN CERTIFICATE")
    return whole[at:], whole[:at]


@pytest.fixture
async def tls_server(tmp_path: Path) -> AsyncIterator[tuple[FakeKubernetes, Path, Path]]:
    server, client = certificate(tmp_path, "server"), certificate(tmp_path, "client")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(server)
    tls.load_verify_locations(cadata=split_chunks(client)[0].decode())
    tls.verify_mode = ssl.CERT_REQUIRED
    async with FakeKubernetes(tls=tls) as fake:
        yield fake, server, client


@pytest.mark.needs("openssl")
async def test_both_sides_show_certificates(
    tls_server: tuple[FakeKubernetes, Path, Path],
) -> None:
    fake, server, client = tls_server
    chain, key = split_chunks(client)
    access = ClusterConfig(
        server=fake.url,
        ca=split_chunks(server)[0],
        credentials=StaticCredentials(chain=chain, key=key),
    )
    async with Client(access) as kube:
        assert (await kube.list(PODS)).items == ()
    async with Client(ClusterConfig(server=fake.url, ca=split_chunks(server)[0])) as kube:
        with pytest.raises(ConnectionLost):
            await kube.list(PODS)


@pytest.mark.needs("openssl")
async def test_a_server_that_cannot_be_trusted_is_not_spoken_to(
    tls_server: tuple[FakeKubernetes, Path, Path],
) -> None:
    fake, server, client = tls_server
    chain, key = split_chunks(client)
    output = StaticCredentials(chain=chain, key=key)
    async with Client(ClusterConfig(server=fake.url, credentials=output)) as kube:
        with pytest.raises(OutsideError, match="cannot verify the certificate") as caught:
            await kube.list(PODS)
        assert not isinstance(caught.value, TemporaryError)
    trusted = split_chunks(server)[0]
    wrong = ClusterConfig(server=fake.url, ca=trusted, credentials=output, server_name="other")
    async with Client(wrong) as kube:
        with pytest.raises(OutsideError, match="cannot verify the certificate"):
            await kube.list(PODS)
    right = ClusterConfig(server=fake.url, ca=trusted, credentials=output, server_name="server")
    insecure = ClusterConfig(server=fake.url, insecure=True, credentials=output)
    for access in (right, insecure):
        async with Client(access) as kube:
            await kube.list(PODS)
    assert len(fake.log) == 2


@pytest.mark.needs("openssl")
async def test_a_connection_that_the_server_closes_is_not_left_to_it(tmp_path: Path) -> None:
    """A TLS shutdown would wait for a server that no longer reads, and outlive the event loop."""
    server = certificate(tmp_path, "server")
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(server)
    begun, over = asyncio.Event(), asyncio.Event()

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        transport = writer.transport
        assert isinstance(transport, asyncio.Transport)
        transport.pause_reading()
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{")
        await begun.wait()
        writer.write(b"}")
        await over.wait()
        transport.abort()

    listener = await asyncio.start_server(respond, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    access = ClusterConfig(server=f"https://127.0.0.1:{port}", ca=split_chunks(server)[0])
    async with listener, Client(access) as kube:
        async with kube.transport.stream(ApiRequest(method="GET", path="/")) as response:
            assert response.connection is not None
            assert response.connection.transport is not None
            connection = response.connection.transport.get_extra_info("socket")
            begun.set()
            assert await response.read() == b"{}"
        await anyio.wait_all_tasks_blocked()
        assert connection.fileno() == -1
        over.set()


async def test_invalid_certificates_are_a_usage_error() -> None:
    access = ClusterConfig(server="https://127.0.0.1:1", ca=b"nonsense")
    async with Client(access) as kube:
        with pytest.raises(UsageError, match="invalid certificate or key"):
            await kube.list(PODS)


async def test_a_server_url_may_have_a_path_and_a_proxy_is_used(fake: FakeKubernetes) -> None:
    async with Client(ClusterConfig(server="http://cluster.test/inner", proxy=fake.url)) as client:
        with pytest.raises(NotFound):
            await client.list(PODS)
    # The server received the request for the other host, which it answers with 404.
    assert fake.log == []


async def test_a_watch_with_long_lines_is_read_completely(
    kube: Client, fake: FakeKubernetes
) -> None:
    since = (await kube.list(CONFIG_MAPS, ListOptions("default"))).version
    big = "x" * (700 << 10)
    for name in ("a", "b"):
        await kube.create(CONFIG_MAPS, config_map(name, "default", big=big))
    results = [
        event.object["data"]["big"] == big
        async for event in kube.watch(CONFIG_MAPS, ListOptions("default"), since=since, seconds=1)
        if event.object is not None
    ]
    assert results == [True, True]
