"""Requests without the token, of other pages, hosts and users are refused."""

from __future__ import annotations

import multiprocessing
import os
import socket
from functools import partial
from pathlib import Path

import anyio
import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.ui.security import AccessPolicy, find_peer_user, is_foreign_user
from tests.sandbox.namespace_process import account
from tests.ui.site import TOKEN, make_site, serve

pytestmark = pytest.mark.anyio


async def test_page_without_session_shows_nothing_of_the_jobs(home: Path, jobs: LocalJobs) -> None:
    async with serve(make_site(home, jobs), signed_in=False) as client:
        status, text = await client.ask("/")
        assert status == 401
        assert "#token=" in text
        assert "<table" not in text
        for path in ("/-/live/", "/-/logs/job/stream", "/-/logs/job/lines"):
            assert (await client.ask(path))[0] == 401
        assert (await client.ask("/-/jobs/job/stop", method="POST"))[0] == 401


@pytest.mark.parametrize("token", ["", "a token of this tesT", TOKEN + "x"])
async def test_wrong_token_is_refused(home: Path, jobs: LocalJobs, token: str) -> None:
    async with serve(make_site(home, jobs), signed_in=False) as client:
        assert await client.sign_in(token) == 403
        assert (await client.ask("/"))[0] == 401


async def test_cookie_is_not_the_token_and_survives_a_restart(home: Path, jobs: LocalJobs) -> None:
    async with serve(make_site(home, jobs)) as client:
        cookie, port = client.cookie, client.port
        assert TOKEN not in cookie["Cookie"]
    async with serve(make_site(home, jobs), port=port, signed_in=False) as client:
        client.cookie = cookie
        assert (await client.ask("/"))[0] == 200
    async with serve(make_site(home, jobs), port=port, token="another token") as client:
        client.cookie = cookie
        assert (await client.ask("/"))[0] == 401


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
async def test_rebound_host_is_refused(home: Path, jobs: LocalJobs, host: str) -> None:
    async with serve(make_site(home, jobs)) as client:
        assert (await client.ask("/", headers={"Host": host}))[0] == 421
        assert (await client.ask("/static/ui.js", headers={"Host": host}))[0] == 421


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:9000", "[::1]:7"])
def test_loopback_names_are_accepted_with_the_port_of_a_tunnel(host: str) -> None:
    assert AccessPolicy(TOKEN).accepts_host(host)


async def test_requests_of_other_pages_are_refused(home: Path, jobs: LocalJobs) -> None:
    async with serve(make_site(home, jobs)) as client:
        stop = partial(client.ask, "/-/jobs/none/stop", method="POST")
        # Of the same site: cookies do not know ports.
        for origin in ("http://evil.example", f"http://127.0.0.1:{client.port + 1}", "null"):
            assert (await stop(headers={"Origin": origin}))[0] == 403
            assert (await client.ask("/", headers={"Origin": origin}))[0] == 403
        for site in ("cross-site", "same-site"):
            assert (await client.ask("/-/live/", headers={"Sec-Fetch-Site": site}))[0] == 403
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}
        assert (await client.ask("/", headers=link))[0] == 200
        assert (await stop())[0] == 409  # the job does not exist


async def test_change_without_an_origin_is_refused(home: Path, jobs: LocalJobs) -> None:
    async with (
        serve(make_site(home, jobs)) as client,
        client.session.post(f"{client.origin}/-/jobs/none/stop", headers=client.cookie) as response,
    ):
        assert response.status == 403


async def test_responses_forbid_what_pages_do_not_need(home: Path, jobs: LocalJobs) -> None:
    async with (
        serve(make_site(home, jobs)) as client,
        client.session.get(f"{client.origin}/", headers=client.cookie) as response,
    ):
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'self'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("name", ["../server.py", "..%2fserver.py", "%2e%2e/server.py", "none.js"])
async def test_static_files_are_only_those(home: Path, jobs: LocalJobs, name: str) -> None:
    async with serve(make_site(home, jobs)) as client:
        assert (await client.ask(f"/static/{name}"))[0] == 404


def ask_as_other_user(port: int, cookie: str, result: multiprocessing.SimpleQueue[bytes]) -> None:
    os.setresuid(*[account().pw_uid] * 3)
    with socket.socket() as connection:
        connection.connect(("127.0.0.1", port))
        head = f"GET / HTTP/1.1\r\nHost: localhost\r\nCookie: {cookie}\r\n\r\n"
        connection.sendall(head.encode())
        result.put(connection.recv(100).split()[1])


@pytest.mark.needs("root")
async def test_another_user_is_refused_even_with_the_cookie(home: Path, jobs: LocalJobs) -> None:
    async with serve(make_site(home, jobs)) as client:
        context = multiprocessing.get_context("fork")
        result: multiprocessing.SimpleQueue[bytes] = context.SimpleQueue()
        process = context.Process(
            target=ask_as_other_user, args=(client.port, client.cookie["Cookie"], result)
        )
        process.start()
        await anyio.to_thread.run_sync(process.join)
        assert process.exitcode == 0
        assert result.get() == b"403"


@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_user_of_a_peer_is_found(address: str) -> None:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.socket(family) as listener:
        listener.bind((address, 0))
        listener.listen()
        with socket.create_connection(listener.getsockname()[:2]):
            peer, _ = listener.accept()
            with peer:
                assert find_peer_user(peer) == os.geteuid()
    assert not is_foreign_user(os.geteuid())
    assert is_foreign_user(os.geteuid() + 1)
    assert not is_foreign_user(None)
