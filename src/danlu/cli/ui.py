"""``danlu ui``."""

from __future__ import annotations

import secrets
import signal
import socket
import ssl
from pathlib import Path

import anyio
import click

from danlu.cli.groups import command as declare_command
from danlu.cli.options import JobNameParam, on_option, verbosity_options
from danlu.cli.session import Session, current_session
from danlu.errors import OutsideError, UsageError
from danlu.jobs.backends import find_target, select_backend
from danlu.ui.components import job_path
from danlu.ui.export import export_job
from danlu.ui.job_catalog import JobCatalog
from danlu.ui.log_source import LogSources
from danlu.ui.security import ANY_ADDRESS, LOOPBACK_HOSTS, AccessPolicy
from danlu.ui.server import serve_site
from danlu.ui.types import Site
from danlu.util.files import write_atomic

_MIN_TOKEN_LENGTH = 16


@declare_command("ui")
@click.option(
    "-p", "--port", type=click.IntRange(0, 65535), default=0, help="Port [default: a free one]."
)
@click.option(
    "--host",
    default="",
    metavar="ADDRESS",
    help="Listen on another address; needs --token-file and --certificate.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Read the token from a file [default: a new one each time].",
)
@click.option(
    "--certificate",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="PEM file with the private key and certificates for HTTPS.",
)
@click.option("--no-browser", is_flag=True, help="Only print the address.")
@click.option(
    "--export",
    "file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write one job as a single HTML file instead.",
)
@click.argument("job", default="", type=JobNameParam())
@on_option
@verbosity_options
def command(
    port: int,
    host: str,
    token_file: Path | None,
    certificate: Path | None,
    no_browser: bool,
    file: Path | None,
    job: str,
) -> int:
    """Show jobs, logs and curves in a browser.

    The page is served to this user of this machine only, until Ctrl-C. On another machine, forward
    the port: ssh -L PORT:127.0.0.1:PORT HOST. With JOB, its page is opened.
    """
    run = current_session()
    if file is not None:
        if not job:
            raise click.UsageError("--export needs the name of a job")
        write_atomic(file, anyio.run(_export_job, run, job).encode())
        run.terminal.info(f"wrote {file}")
        return 0
    host = host or LOOPBACK_HOSTS[0]
    outside = host if host not in LOOPBACK_HOSTS else ""
    if outside and (token_file is None or certificate is None):
        raise UsageError(
            f"--host {host} needs --token-file and --certificate: others can reach the page",
            hint="or keep 127.0.0.1, and forward the port with ssh -L",
        )
    policy = AccessPolicy(_read_token(token_file), outside)
    tls = _load_certificate(certificate) if certificate is not None else None
    page = job_path(job) if job else "/"
    return anyio.run(_serve_pages, run, policy, host, port, tls, page, not no_browser)


async def _export_job(run: Session, job: str) -> str:
    site = make_site(run)
    try:
        return await export_job(site, job)
    finally:
        site.logs.close()


def _read_token(file: Path | None) -> str:
    if file is None:
        return secrets.token_urlsafe(32)
    token = file.read_text().strip()
    if len(token) < _MIN_TOKEN_LENGTH:
        raise UsageError(
            f"the token in {file} has fewer than {_MIN_TOKEN_LENGTH} characters",
            hint=f"for example: openssl rand -hex 32 > {file}",
        )
    return token


def _load_certificate(file: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    file.read_bytes()  # ssl does not name a file that it cannot read
    try:
        context.load_cert_chain(file)
    except ssl.SSLError as error:
        raise OutsideError(
            f"cannot use the certificate {file}: {error.reason or error}",
            hint="it must contain the private key and its certificates, in PEM",
        ) from error
    return context


async def _serve_pages(
    run: Session,
    policy: AccessPolicy,
    host: str,
    port: int,
    tls: ssl.SSLContext | None,
    page: str,
    opens: bool,
) -> int:
    site = make_site(run)
    async with serve_site(site, policy, host=host, port=port, tls=tls) as actual:
        shown = socket.gethostname() if host in ANY_ADDRESS else host
        shown = f"[{shown}]" if ":" in shown else shown
        address = f"{'https' if tls else 'http'}://{shown}:{actual}{page}#token={policy.token}"
        run.terminal.write_stdout(address)
        run.terminal.info("open this address in a browser; Ctrl-C ends the page")
        # Every user of the machine sees the arguments of the browser. On this machine the token is
        # of no use to them (danlu.ui.security).
        if opens and run.terminal.out_is_terminal and not policy.host:
            click.launch(address)
        with anyio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
            async for number in signals:
                return 128 + number if number == signal.SIGTERM else 0
    return 0


def make_site(run: Session) -> Site:
    """Return what the pages read, for the context of the command."""
    if run.on and run.context.is_remote:
        raise UsageError(
            f"the jobs of context {run.on} are on another machine, which shows them itself",
            hint="ssh -L 8790:127.0.0.1:8790 HOST danlu ui --port 8790 --no-browser",
        )
    backend = select_backend(run.on, run.settings)
    where = find_target(run.on, run.settings).name
    return Site(run.settings, where, backend, JobCatalog(backend), LogSources(backend))
