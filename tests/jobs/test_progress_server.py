"""The progress server with real clients: what Transformers and the Kubeflow SDK do, and strangers.

The client below does step for step what ``KubeflowCallback`` of transformers 5.23 does.
"""

from __future__ import annotations

import asyncio
import json
import os
import socket
import ssl
import stat
import urllib.error
import urllib.request
from collections.abc import Callable, Coroutine, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from danlu.jobs.local.progress_server import ProgressServer
from danlu.training.progress import CA_CERT, MAX_REPORT_BYTES, SERVER_URL, TOKEN, TrainingProgress
from danlu.training.types import Job, ReplicaId, ReplicaType
from danlu.util import certificate
from danlu.util.files import write_atomic

LEADER = ReplicaId(ReplicaType("Master"), 0)
WORKER = ReplicaId(ReplicaType("Worker"), 0)
OTHER = ReplicaId(ReplicaType("Worker"), 1)
PATH = "/apis/trainer.kubeflow.org/v1alpha1/namespaces/default/trainjobs/mnist/status"

Reports = list[TrainingProgress]
Body = Callable[[ProgressServer, Reports], Coroutine[Any, Any, None]]


@pytest.fixture
def serving(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Body], None]:
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)

    async def make_context(body: Body) -> None:
        reports: Reports = []
        server = ProgressServer(
            reports.append,
            job=Job(kind="PyTorchJob", name="mnist", replicas={}),
            leader=LEADER,
            directory=tmp_path / "progress",
            certificates=tmp_path / "certificates",
        )
        async with server:
            await body(server, reports)

    return lambda body: asyncio.run(make_context(body))


def status(**fields: Any) -> bytes:
    now = datetime.now(UTC).isoformat()
    return json.dumps({"trainerStatus": {"lastUpdatedTime": now, **fields}}).encode()


def send(environment: Mapping[str, str], body: bytes, **changes: Any) -> tuple[int, bytes]:
    """One report by ``urllib``; ``token``, ``path`` and ``method`` may be other ones."""
    token = changes.get("token") or Path(environment[TOKEN]).read_text(encoding="utf-8").strip()
    ca_file = environment.get(CA_CERT)
    context = ssl.create_default_context(cafile=ca_file) if ca_file else None
    request = urllib.request.Request(
        environment[SERVER_URL] + changes.get("path", ""),
        data=body,
        headers={"Authorization": f"Bearer {token}", "Content-Type": "application/json"},
        method=changes.get("method", "POST"),
    )
    try:
        with urllib.request.urlopen(request, timeout=60, context=context) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


async def post(environment: Mapping[str, str], body: bytes, **changes: Any) -> tuple[int, bytes]:
    return await asyncio.to_thread(send, environment, body, **changes)


@pytest.mark.needs("openssl")
def test_a_report_of_the_leader_arrives_over_verified_tls(serving: Callable[[Body], None]) -> None:
    async def body(server: ProgressServer, reports: Reports) -> None:
        environment = server.environment(LEADER)
        assert environment[SERVER_URL].startswith("https://127.0.0.1:")
        assert environment[SERVER_URL].endswith(PATH)
        sent = status(progressPercentage=7, metrics=[{"name": "loss", "value": "0.5"}])
        assert await post(environment, sent) == (200, sent)
        assert server.warnings() == ()
        assert [(report.percentage, report.metrics) for report in reports] == [(7, {"loss": 0.5})]

    serving(body)


def test_without_a_certificate_the_server_uses_plain_http(
    serving: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")

    async def body(server: ProgressServer, reports: Reports) -> None:
        environment = server.environment(LEADER)
        assert environment[SERVER_URL].startswith("http://127.0.0.1:")
        assert CA_CERT not in environment
        assert (await post(environment, status(progressPercentage=7)))[0] == 200
        assert len(reports) == 1

    serving(body)


def test_a_job_runs_without_a_progress_server(
    serving: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def refuse_sockets(*args: Any, **options: Any) -> None:
        raise OSError("no sockets here")

    monkeypatch.setattr(asyncio, "start_server", refuse_sockets)

    async def body(server: ProgressServer, reports: Reports) -> None:
        assert server.warnings() == ("training progress is not available: no sockets here",)
        assert server.port is None
        assert server.environment(LEADER) == {}

    serving(body)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"token": "guess"}, 401),
        ({"path": "x"}, 404),
        ({"method": "PUT"}, 405),
    ],
)
def test_an_unauthorized_request_is_rejected(
    serving: Callable[[Body], None], changes: dict[str, str], code: int
) -> None:
    async def body(server: ProgressServer, reports: Reports) -> None:
        got, answer = await post(server.environment(LEADER), status(), **changes)
        assert got == code
        assert json.loads(answer)["status"] == "Failure"
        assert reports == []

    serving(body)


def test_an_invalid_report_is_rejected_with_its_reason(serving: Callable[[Body], None]) -> None:
    async def body(server: ProgressServer, reports: Reports) -> None:
        code, answer = await post(server.environment(LEADER), status(progressPercentage=101))
        assert code == 422
        assert "progressPercentage" in json.loads(answer)["message"]
        assert reports == []

    serving(body)


def test_each_replica_has_a_private_token(
    serving: Callable[[Body], None],
) -> None:
    async def body(server: ProgressServer, reports: Reports) -> None:
        files = [Path(server.environment(replica)[TOKEN]) for replica in (LEADER, WORKER, OTHER)]
        assert len({file.read_text() for file in files}) == 3
        private = files[0].parent.parent
        assert stat.S_IMODE(private.stat().st_mode) == 0o700

    serving(body)


def test_a_restarted_replica_keeps_its_token(serving: Callable[[Body], None]) -> None:
    async def body(server: ProgressServer, reports: Reports) -> None:
        before = Path(server.environment(LEADER)[TOKEN]).read_text()
        assert Path(server.environment(LEADER)[TOKEN]).read_text() == before

    serving(body)


def test_progress_is_the_leaders_or_until_it_reports_the_first_replicas(
    serving: Callable[[Body], None],
) -> None:
    async def body(server: ProgressServer, reports: Reports) -> None:
        output = [(WORKER, 1), (OTHER, 2), (WORKER, 3), (LEADER, 4), (WORKER, 5), (LEADER, 6)]
        for replica, percentage in output:
            sent = status(progressPercentage=percentage)
            assert (await post(server.environment(replica), sent))[0] == 200
        assert [report.percentage for report in reports] == [1, 3, 4, 6]

    serving(body)


def test_the_history_contains_one_replicas_reports(serving: Callable[[Body], None]) -> None:
    async def body(server: ProgressServer, reports: Reports) -> None:
        for number, replica in enumerate((WORKER, OTHER, WORKER, LEADER, WORKER, LEADER)):
            sent = status(metrics=[{"name": "loss", "value": str(number)}])
            assert (await post(server.environment(replica), sent))[0] == 200
        results = [[value for _, value in report.history["loss"]] for report in reports]
        assert results == [[0.0], [0.0, 2.0], [3.0], [3.0, 5.0]]

    serving(body)


def test_a_container_gets_the_paths_that_it_sees(
    serving: Callable[[Body], None],
) -> None:
    async def body(server: ProgressServer, reports: Reports) -> None:
        assert f":{server.port}/" in server.environment(LEADER)[SERVER_URL]
        output = server.environment(LEADER, files="/mnt/here")
        assert output[TOKEN] == "/mnt/here/token"
        assert output[CA_CERT] == "/mnt/here/ca.crt"
        mounted = server.files(LEADER)
        seen = {TOKEN: str(mounted / "token"), CA_CERT: str(mounted / "ca.crt")}
        assert (await post({**output, **seen}, status(progressPercentage=9)))[0] == 200
        assert reports[0].percentage == 9

    serving(body)


def test_no_proxy_includes_the_server(
    serving: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def body(server: ProgressServer, reports: Reports) -> None:
        assert "no_proxy" not in server.environment(LEADER)
        monkeypatch.setenv("HTTPS_PROXY", "http://127.0.0.1:9")
        monkeypatch.setenv("no_proxy", "example.org")
        environment = server.environment(LEADER)
        assert environment["no_proxy"] == environment["NO_PROXY"] == "example.org,127.0.0.1"
        monkeypatch.setenv("no_proxy", environment["no_proxy"])
        assert (await post(environment, status()))[0] == 200

    serving(body)


def plain(environment: Mapping[str, str]) -> tuple[str, int]:
    host, port = environment[SERVER_URL].split("/")[2].split(":")
    return host, int(port)


def exchange(environment: Mapping[str, str], sent: bytes) -> bytes:
    """Send these bytes to the server and return its response."""
    with socket.create_connection(plain(environment), timeout=60) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(4096), b""))


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (b"hello\r\n\r\n", 400),
        (b"POST / HTTP/2\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", 400),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n", 411),
        (b"POST / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % (MAX_REPORT_BYTES + 1), 413),
        (b"POST / HTTP/1.1\r\nContent-Length: %s\r\n\r\n" % (b"9" * 5000), 413),
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20000 + b"\r\n\r\n", 431),
        (b"GET /x HTTP/1.1\r\n\r\n", 404),
    ],
)
def test_an_invalid_http_request_is_answered_and_closed(
    serving: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch, sent: bytes, code: int
) -> None:
    monkeypatch.setenv("PATH", "")

    async def body(server: ProgressServer, reports: Reports) -> None:
        environment = server.environment(LEADER)
        answer = await asyncio.to_thread(exchange, environment, sent)
        assert answer.startswith(b"HTTP/1.1 %d " % code)
        assert (await post(environment, status()))[0] == 200

    serving(body)


def test_expect_100_continue_is_answered(
    serving: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")

    async def body(server: ProgressServer, reports: Reports) -> None:
        environment = server.environment(LEADER)
        token = Path(environment[TOKEN]).read_bytes()
        sent = status(progressPercentage=3)
        head = b"POST %s HTTP/1.1\r\nAuthorization: bearer %s\r\nExpect: 100-continue\r\n"
        reader, writer = await asyncio.open_connection(*plain(environment))
        writer.write(head % (PATH.encode(), token) + b"Content-Length: %d\r\n\r\n" % len(sent))
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(sent)
        assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
        assert reports[0].percentage == 3
        writer.close()
        await writer.wait_closed()

    serving(body)


def test_silent_clients_do_not_block_shutdown(
    serving: Callable[[Body], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", "")
    opened: list[socket.socket] = []

    async def body(server: ProgressServer, reports: Reports) -> None:
        address = plain(server.environment(LEADER))
        # More than are answered at once: the rest is turned away and nothing breaks.
        opened.extend(socket.create_connection(address, timeout=60) for _ in range(80))
        turned_away = opened[-1]
        assert await asyncio.to_thread(_is_at_end, turned_away)

    serving(body)
    for connection in opened:
        connection.close()


def _is_at_end(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.needs("openssl")
def test_a_report_arrives_if_another_job_replaces_the_certificate_meanwhile(
    serving: Callable[[Body], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = asyncio.run(certificate.create_certificate(["IP:127.0.0.1"], days=1))
    assert other is not None
    load_cert_chain = ssl.SSLContext.load_cert_chain
    kept = tmp_path / "certificates" / "127.0.0.1.pem"

    def load_and_replace(context: ssl.SSLContext, path: str) -> None:
        load_cert_chain(context, path)
        write_atomic(kept, other)

    monkeypatch.setattr(ssl.SSLContext, "load_cert_chain", load_and_replace)

    async def body(server: ProgressServer, reports: Reports) -> None:
        assert kept.read_bytes() == other
        assert (await post(server.environment(LEADER), status(progressPercentage=7)))[0] == 200

    serving(body)


@pytest.mark.needs("openssl")
def test_a_certificate_is_reused_and_renewed_when_old(tmp_path: Path) -> None:
    result = asyncio.run(certificate.load_or_create_certificate("127.0.0.1", directory=tmp_path))
    assert result is not None
    assert stat.S_IMODE(result.stat().st_mode) == 0o600
    assert b"PRIVATE KEY" not in certificate.extract_certificate(result.read_bytes())
    first = result.read_bytes()
    asyncio.run(certificate.load_or_create_certificate("127.0.0.1", directory=tmp_path))
    assert result.read_bytes() == first
    old = result.stat().st_mtime - 400 * 86400
    os.utime(result, (old, old))
    asyncio.run(certificate.load_or_create_certificate("127.0.0.1", directory=tmp_path))
    assert result.read_bytes() != first


@pytest.mark.needs("openssl")
def test_the_certificate_passes_strict_verification(tmp_path: Path) -> None:
    result = asyncio.run(certificate.load_or_create_certificate("127.0.0.1", directory=tmp_path))
    assert result is not None
    client = ssl.create_default_context(
        cadata=certificate.extract_certificate(result.read_bytes()).decode()
    )
    client.verify_flags |= ssl.VERIFY_X509_STRICT | ssl.VERIFY_X509_PARTIAL_CHAIN
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(result)
    assert _finish_handshake(client, server, "127.0.0.1")
    with pytest.raises(ssl.SSLCertVerificationError):
        _finish_handshake(client, server, "127.0.0.2")


def _finish_handshake(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> bool:
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server, server_hostname=name)
    other = server.wrap_bio(to_server, to_client, server_side=True)
    result: set[ssl.SSLObject] = set()
    for side in (ours, other, ours, other):
        with suppress(ssl.SSLWantReadError):
            side.do_handshake()
            result.add(side)
    return result == {ours, other}
