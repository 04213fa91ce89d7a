"""Give back what a replica of a cluster returned or raised, where no file of it is ever read.

Variables say how: ``DANLU_RESULTS_URL`` is a server of danlu's operator, which keeps it;
``DANLU_TERMINATION_FILE`` the container's last word, which any cluster keeps, and which is short.
``DANLU_VALUE_OF`` is the replica whose value is asked for, ``all`` for every one's. Standard
library only, and for a Python as old as 3.6.
"""

import base64
import json
import os
import pickle
import time
from typing import Any

__all__ = ["NotDelivered", "asked", "is_possible", "note", "value"]

URL, TERMINATION = "DANLU_RESULTS_URL", "DANLU_TERMINATION_FILE"
OF, REPLICA = "DANLU_VALUE_OF", "DANLU_REPLICA"
CA, TOKEN = "KUBEFLOW_TRAINER_SERVER_CA_CERT", "KUBEFLOW_TRAINER_SERVER_TOKEN"

#: Bytes that a last word takes: 4096 (kubelet, MaxContainerTerminationMessageLength) as base64.
SHORTEST = 3000

#: Bytes of a traceback's end that are told where it is too long.
TEXT = 1500

_TRIES, _PAUSE, _SECONDS = 4, 1.0, 20.0


class NotDelivered(Exception):
    """What was returned cannot be given back; the message says why, and what to do."""


def is_possible() -> bool:
    """Whether anything can be given back so."""
    return bool(os.environ.get(URL) or os.environ.get(TERMINATION))


def asked() -> bool:
    """Whether the value of this replica is asked for, and can be given back so."""
    of = os.environ.get(OF, "")
    return bool(of) and of in ("all", os.environ.get(REPLICA, "")) and is_possible()


def value(data: bytes) -> None:
    """Give back a pickled value; raises :class:`NotDelivered`."""
    _send("value", data)


def note(told: "dict[str, Any]") -> None:
    """Give back what was raised (``text``, ``error`` and more), shortened until it fits.

    Nothing is raised: the program has failed already.
    """
    nothing = b"" if isinstance(told["error"], bytes) else None
    shorter = dict(told, error=nothing)
    shortest = dict(shorter, text=told["text"][-TEXT:], message=told["message"][:200])
    for one in (told, shorter, shortest):
        try:
            _send("raised", pickle.dumps(one, 4))
        except NotDelivered:
            continue
        return


def _send(what: str, data: bytes) -> None:
    url = os.environ.get(URL)
    if url:
        _put(f"{url.rstrip('/')}/{os.environ[REPLICA]}/{what}", data)
    else:
        _last_word(what, data)


def _last_word(what: str, data: bytes) -> None:
    if len(data) > SHORTEST:
        raise NotDelivered(
            f"{len(data)} bytes cannot be given back, only {SHORTEST} by the last word of a"
            " container: write them to a volume, or have danlu's operator serve results"
        )
    text = json.dumps({what: base64.b64encode(data).decode()})
    try:
        with open(os.environ[TERMINATION], "w") as file:
            file.write(text)
    except OSError as error:
        raise NotDelivered(f"the last word cannot be written: {error}") from error


def _put(url: str, data: bytes) -> None:
    # Late: most replicas give nothing back.
    from urllib.error import HTTPError

    said = ""
    for attempt in range(_TRIES):
        if attempt:
            time.sleep(_PAUSE * attempt)
        try:
            _open(url, data)
            return
        except HTTPError as error:
            said = _words(error.code, error.read(2000))
            if error.code < 500 and error.code != 429:
                break
        except (OSError, ValueError) as error:
            said = str(error)
    raise NotDelivered(f"the operator does not take it ({said})")


def _words(code: int, body: bytes) -> str:
    """Why a server refuses: the message of a Status of Kubernetes, or what it says."""
    text = body.decode("utf-8", "replace").strip()
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return f"{code}: {text}"


def _open(url: str, data: bytes) -> None:
    from urllib.request import Request, build_opener

    headers = {"Content-Type": "application/octet-stream"}
    token = os.environ.get(TOKEN)
    if token:
        with open(token) as file:
            headers["Authorization"] = f"Bearer {file.read().strip()}"
    request = Request(url, data=data, headers=headers, method="PUT")
    with build_opener(*_handlers(url)).open(request, timeout=_SECONDS):
        pass


def _handlers(url: str) -> "list[Any]":
    """No proxy, and the operator's own authority."""
    from urllib.request import HTTPSHandler, ProxyHandler

    if not url.startswith("https:"):
        return [ProxyHandler({})]
    import ssl

    context = ssl.create_default_context(cafile=os.environ.get(CA) or None)
    return [ProxyHandler({}), HTTPSHandler(context=context)]
