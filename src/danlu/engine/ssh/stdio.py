"""Serve the SSH client at the other end of stdin and stdout: OpenSSH's ``ProxyCommand``."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from danlu.engine.ssh.forwarding import NetworkConnector
from danlu.engine.ssh.keys import SshKeys
from danlu.engine.ssh.server import serve_connection
from danlu.engine.ssh.transport import StreamTransport
from danlu.engine.types import ExecClient
from danlu.errors import DanluError

_MAX_LOG_BYTES = 1 << 20
_LOG_FORMAT = "%(asctime)s %(process)d %(message)s"


def serve_standard_streams(
    client: ExecClient, keys: SshKeys, *, network: NetworkConnector | None = None
) -> None:
    """Serve one connection on stdin and stdout until the client disconnects.

    Nothing else may be written to stdout. Raises :class:`OutsideError` if it did not log in.
    """
    handler = _open_log(keys)
    transport = StreamTransport(0, 1)
    try:
        asyncio.run(serve_connection(transport.socket, client, keys, network=network))
    except DanluError as error:
        logging.getLogger(__name__).warning("%s", error)
        raise
    finally:
        transport.finish()
        handler.close()


def _open_log(keys: SshKeys) -> logging.Handler:
    """Send what this package and asyncssh report to the transport's log, which starts over."""
    path = keys.transport_log
    with suppress(FileNotFoundError):
        if path.stat().st_size > _MAX_LOG_BYTES:
            path.unlink()
    handler = logging.FileHandler(path, delay=True)
    handler.setFormatter(logging.Formatter(_LOG_FORMAT))
    for name, level in (("danlu.engine.ssh", logging.INFO), ("asyncssh", logging.WARNING)):
        logger = logging.getLogger(name)
        logger.setLevel(level)
        logger.addHandler(handler)
        logger.propagate = False
    return handler
