"""The command: who may listen where, and what it says otherwise."""

from __future__ import annotations

import ssl
from pathlib import Path

import anyio
import pytest

from danlu.jobs.local.client import LocalJobs
from danlu.ui.security import AccessPolicy
from danlu.ui.server import serve_site
from danlu.util.certificate import create_certificate, extract_certificate
from tests.cli.conftest import Cli, cli
from tests.ui.site import TOKEN, make_site, serve

__all__ = ["cli"]


def test_other_machines_need_a_token_of_the_user_and_tls(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = tmp_path / "token"
    token.write_text("long enough as a token\n")
    for more in ([], ["--token-file", str(token)], ["--certificate", str(token)]):
        result = cli("ui", "--host", "192.0.2.7", *more)
        assert result.code == 2
        assert "--host 192.0.2.7 needs --token-file and --certificate" in result.err
    result = cli(
        "ui", "--host", "192.0.2.7", "--token-file", str(token), "--certificate", str(token)
    )
    assert result.code == 3
    assert f"cannot use the certificate {token}" in result.err


def test_short_token_is_refused(cli: Cli, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("short\n")
    result = cli("ui", "--token-file", str(token))
    assert result.code == 2
    assert "fewer than 16 characters" in result.err
    assert "openssl rand" in result.err


def test_export_names_what_is_missing(cli: Cli, tmp_path: Path) -> None:
    assert "--export needs the name of a job" in cli("ui", "--export", "x.html").err
    result = cli("ui", "--export", str(tmp_path / "x.html"), "none")
    assert (result.code, "job 'none' not found" in result.err) == (2, True)
    assert not (tmp_path / "x.html").exists()


@pytest.mark.anyio
async def test_port_that_is_in_use_is_named(home: Path, jobs: LocalJobs, cli: Cli) -> None:
    async with serve(make_site(home, jobs)) as client:
        words = ("ui", "--port", str(client.port), "--no-browser")
        result = await anyio.to_thread.run_sync(lambda: cli(*words))
        assert result.code == 4
        assert f"cannot listen on 127.0.0.1:{client.port}" in result.err


@pytest.mark.anyio
@pytest.mark.needs("openssl")
async def test_page_is_served_with_tls(home: Path, jobs: LocalJobs, tmp_path: Path) -> None:
    pem = await create_certificate(["IP:127.0.0.1"], days=1)
    assert pem is not None
    file = tmp_path / "server.pem"
    file.write_bytes(pem)
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(file)
    trusted = ssl.create_default_context(cadata=extract_certificate(pem).decode())
    site, policy = make_site(home, jobs), AccessPolicy(TOKEN, "0.0.0.0")
    async with serve_site(site, policy, host="127.0.0.1", port=0, tls=tls) as port:
        stream = await anyio.connect_tcp("127.0.0.1", port, ssl_context=trusted)
        async with stream:
            origin = f"https://any.example:{port}"
            head = f"POST /-/session HTTP/1.1\r\nHost: any.example:{port}\r\nOrigin: {origin}\r\n"
            await stream.send(f"{head}Content-Length: {len(TOKEN)}\r\n\r\n{TOKEN}".encode())
            answer = (await stream.receive()).decode()
    assert answer.startswith("HTTP/1.1 204")
    assert "; Secure" in answer
