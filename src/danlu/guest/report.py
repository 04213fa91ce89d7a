"""Tell how far a training program is: ``danlu.report(percentage=40, loss=0.3)``.

It speaks the training-progress protocol (Kubeflow Trainer's KEP-2779, see
danlu.training.progress): it posts JSON to the address that ``KUBEFLOW_TRAINER_SERVER_URL`` names,
with the token in the file of ``KUBEFLOW_TRAINER_SERVER_TOKEN``, here and on a cluster alike. This
file is copied to where a job's programs find it as the module ``danlu``, so it needs nothing but
the standard library of a Python as old as 3.6.
"""

import atexit
import json
import os
import sys
import threading
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable
    from http.client import HTTPConnection

__all__ = ["report"]

URL = "KUBEFLOW_TRAINER_SERVER_URL"
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
CA_CERT = "KUBEFLOW_TRAINER_SERVER_CA_CERT"

#: Seconds between two posts: to this machine, and to a cluster, which asks for no more.
NEAR, FAR = 0.5, 5.0

#: Seconds that a post may take; at the end of the program somebody waits for it.
_PATIENCE, _LAST_PATIENCE = 5.0, 2.0
#: Seconds until a server that did not answer is asked again, at most.
_LONGEST = 30.0

#: Of a name or a value, and how many metrics there may be (the protocol's limits).
_LETTERS, _METRICS = 64, 256
_MOST_SECONDS = 2**31 - 1


def report(
    *,
    percentage: "float | None" = None,
    seconds_left: "float | None" = None,
    **metrics: float,
) -> None:
    """Tell how far the program is, to whoever watches its job.

    ``percentage`` is from 0 to 100, ``seconds_left`` an estimate; anything that ``float`` takes is
    a metric (``loss=…``). What is not given stays as it was told last. It is sent in the
    background, at most once in a short while: then the newest of each, and the last in any case
    before the program ends. Where nobody listens it does nothing. It never raises.
    """
    try:
        sender = _sender()
        if sender is not None:
            sender.tell(_progress(percentage, seconds_left), _texts(metrics))
    except Exception as error:
        _complain(str(error))


# -- what is told ---------------------------------------------------------------------------------


def _progress(percentage: "float | None", seconds_left: "float | None") -> "dict[str, int]":
    found = {}
    if percentage is not None:
        found["progressPercentage"] = _within("percentage", percentage, 100)
    if seconds_left is not None:
        found["estimatedRemainingSeconds"] = _within("seconds_left", seconds_left, _MOST_SECONDS)
    return {name: number for name, number in found.items() if number is not None}


def _within(name: str, value: object, most: int) -> "int | None":
    number = _number(name, value)
    if number is None or number != number:
        return None
    return int(min(max(number, 0), most))


def _texts(metrics: "dict[str, float]") -> "dict[str, str]":
    """Metrics as the protocol has them: both names and values are text."""
    found = {}
    for name, value in metrics.items():
        number = _number(name, value)
        if len(name) > _LETTERS:
            _complain(f"the name {name} has more than {_LETTERS} letters")
        elif number is not None:
            found[name] = repr(number)
    return found


def _number(name: str, value: object) -> "float | None":
    try:
        return float(value)  # type: ignore[arg-type]
    except Exception as error:  # whatever a tensor of many numbers raises
        _complain(f"{name} is not a number: {error}")
        return None


_complaints = set()  # type: set[str]


def _complain(text: str) -> None:
    """Say what is wrong, once: training goes on."""
    if text not in _complaints:
        _complaints.add(text)
        sys.stderr.write(f"danlu.report: {text}\n")


# -- how it is sent -------------------------------------------------------------------------------


class Sender:
    """Sends what is told from a thread of its own: the newest, at most once in ``interval``."""

    def __init__(self, url: str, token: str, ca_cert: "str | None", interval: float) -> None:
        self._connect = _connector(url, ca_cert)
        self._path = urlsplit(url).path
        self._token = token
        self._interval = self._pause = interval
        self._process = os.getpid()
        self._progress = {}  # type: dict[str, int]
        self._metrics = {}  # type: dict[str, str]
        self._told = threading.Condition()
        self._posting = threading.Lock()
        self._untold = False
        self._thread = None  # type: threading.Thread | None

    def tell(self, progress: "dict[str, int]", metrics: "dict[str, str]") -> None:
        """Have this sent; returns at once."""
        with self._told:
            self._progress.update(progress)
            self._metrics.update(metrics)
            self._untold = True
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="danlu.report", daemon=True)
                self._thread.start()
                _at_exit(self.flush)
            self._told.notify()

    def flush(self) -> None:
        """Send what was not sent yet, now; nothing in a process that was forked since."""
        if self._process == os.getpid():
            self._send(_LAST_PATIENCE)

    def _run(self) -> None:
        while True:
            with self._told:
                while not self._untold:
                    self._told.wait()
            self._send(_PATIENCE)
            time.sleep(self._pause)

    def _send(self, patience: float) -> None:
        # One at a time, so that an older report never comes after a newer one.
        with self._posting:
            body = self._taken()
            if body is None:
                return
            try:
                self._post(body, patience)
                self._pause = self._interval
            except Exception as error:
                _complain(f"not told: {error}")
                self._pause = min(2 * self._pause, _LONGEST)
                self._untold = True

    def _taken(self) -> "bytes | None":
        with self._told:
            if not self._untold:
                return None
            self._untold = False
            status = dict(self._progress)  # type: dict[str, object]
            last = list(self._metrics.items())[-_METRICS:]
        status["lastUpdatedTime"] = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        status["metrics"] = [{"name": name, "value": value} for name, value in last]
        return json.dumps({"trainerStatus": status}).encode()

    def _post(self, body: bytes, patience: float) -> None:
        connection = self._connect(patience)
        try:
            connection.request("POST", self._path, body, self._headers())
            answer = connection.getresponse()
            said = answer.read()
        finally:
            connection.close()
        if answer.status >= 500:
            raise OSError(f"{answer.status} {answer.reason}")
        if answer.status >= 300:
            # It would be refused once more, so it is not sent once more.
            _complain("refused: {} {}".format(answer.status, said.decode(errors="replace")))

    def _headers(self) -> "dict[str, str]":
        # Read each time: a cluster puts another token there now and then.
        with open(self._token) as file:
            token = file.read().strip()
        return {"Authorization": "Bearer " + token, "Content-Type": "application/json"}


def _connector(url: str, ca_cert: "str | None") -> "Callable[[float], HTTPConnection]":
    """What makes a connection, directly: no proxy leads to this machine or to its cluster."""
    # All is imported here: a process that is forked while a thread imports can never do it again.
    from http.client import HTTPConnection, HTTPSConnection

    parts = urlsplit(url)
    host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    if parts.scheme != "https":
        return lambda patience: HTTPConnection(host, port, timeout=patience)
    import ssl

    context = ssl.create_default_context(cafile=ca_cert)
    return lambda patience: HTTPSConnection(host, port, timeout=patience, context=context)


def _now() -> str:
    seconds = time.time()
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1e6):06d}Z"


#: By process: after a fork there is no thread that would send.
_senders = {}  # type: dict[int, Sender]


def _sender() -> "Sender | None":
    """This process's; None where nobody listens."""
    known = _senders.get(os.getpid())
    if known is not None:
        return known
    url, token = os.environ.get(URL), os.environ.get(TOKEN)
    if not url or not token:
        return None
    near = urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost")
    made = Sender(url, token, os.environ.get(CA_CERT) or None, NEAR if near else FAR)
    return _senders.setdefault(os.getpid(), made)


def _at_exit(act: "object") -> None:
    atexit.register(act)  # type: ignore[arg-type]
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # Processes of multiprocessing end without what atexit knows.
        util.Finalize(None, act, exitpriority=0)
