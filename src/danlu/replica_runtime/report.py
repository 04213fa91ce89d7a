"""Report the progress of a training program: ``danlu.report(percentage=40, loss=0.3)``.

Also find the directory of its checkpoints: ``danlu.checkpoint_dir()``.

Implements the client of Kubeflow Trainer's training-progress protocol (KEP-2779, see
:mod:`danlu.training.progress`): JSON is posted to ``KUBEFLOW_TRAINER_SERVER_URL`` with the token in
the file ``KUBEFLOW_TRAINER_SERVER_TOKEN``, both on this machine and on a cluster. This file is also
copied into jobs as the module ``danlu``, for environments without danlu.

The protocol only has the newest value of each metric. In addition all values since the last post
are sent as ``danluPoints``, ``{name: [[seconds, value], …]}``, which other servers ignore.
"""

import atexit
import json
import math
import os
import re
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

if TYPE_CHECKING:
    # The generic collections need a newer Python than 3.6, and http.client is loaded when needed.
    from collections.abc import Callable, Mapping, Sequence
    from http.client import HTTPConnection

#: The directory of the job's checkpoints; the same in every attempt, and in every job of that name.
CHECKPOINT_DIRECTORY = "DANLU_CHECKPOINT_DIR"

URL = "KUBEFLOW_TRAINER_SERVER_URL"
TOKEN = "KUBEFLOW_TRAINER_SERVER_TOKEN"
CA_CERT = "KUBEFLOW_TRAINER_SERVER_CA_CERT"

#: Set in the replicas of a trial of Katib, which reads metrics from their output.
KATIB_TRIAL = "KATIB_TRIAL_NAME"

#: Seconds between two posts, to this machine and to a cluster (the minimum of the protocol).
LOCAL_INTERVAL, CLUSTER_INTERVAL = 0.5, 5.0

#: The timeout of a post, and of the last one, for which the exiting program waits.
_POST_TIMEOUT, _FLUSH_TIMEOUT = 5.0, 2.0

#: The maximum interval between two posts to a server that does not respond.
_MAX_RETRY_SECONDS = 30.0

#: Limits of the protocol: characters of a name or value, and number of metrics.
_MAX_NAME_LENGTH, _MAX_METRICS = 64, 256
_MAX_SECONDS_LEFT = 2**31 - 1

#: The protocol's maximum size of a post, and an upper bound for the size of a point in it.
_MAX_BODY_BYTES, _MAX_POINT_BYTES = 1 << 16, 48

#: How many metrics keep their points, and how many points each keeps until they are sent.
MAX_SERIES, MAX_POINTS = 16, 512


def checkpoint_dir() -> Path:
    """Return the directory for the checkpoints of this training program; it exists.

    All replicas of a job share it. It survives restarts of replicas and the end of the job, and the
    next job of that name in the same project gets it again, with its files. In a program that was
    not started by danlu it is ``checkpoints`` in the working directory.

    Raises :class:`RuntimeError` on a cluster if no PersistentVolumeClaim is configured, because
    everything else is lost with the pod.
    """
    directory = os.environ.get(CHECKPOINT_DIRECTORY, "")
    if not directory and os.environ.get("KUBERNETES_SERVICE_HOST"):
        raise RuntimeError(
            "no directory for checkpoints: create a PersistentVolumeClaim and set"
            " `checkpoint_claim` under [kubernetes] in danlu's config.toml, or set"
            " DANLU_CHECKPOINT_DIR in the manifest to a directory of a volume"
        )
    path = Path(directory or "checkpoints").absolute()
    path.mkdir(parents=True, exist_ok=True)
    return path


def report(
    *,
    percentage: "float | None" = None,
    seconds_left: "float | None" = None,
    **metrics: float,
) -> None:
    """Report the progress and the metrics of a training program.

    Reports are sent in the background at short intervals, and a last time before the program exits.
    Values that are not given keep what was reported before. In a trial of Katib metrics are also
    printed. Never raises, and sends nothing if no server is configured.

    Args:
        percentage: Progress, from 0 to 100.
        seconds_left: Estimated remaining time.
        metrics: Anything that ``float`` accepts (``loss=…``).
    """
    try:
        sender, is_trial = _get_sender(), bool(os.environ.get(KATIB_TRIAL))
        numbers = _metric_numbers(metrics) if is_trial or sender is not None else {}
        if is_trial:
            _print_for_katib(numbers)
        if sender is not None:
            sender.report(_progress_fields(percentage, seconds_left), numbers)
    except Exception as error:
        _warn_once(str(error))


# -- values ---------------------------------------------------------------------------------------


def _progress_fields(percentage: "float | None", seconds_left: "float | None") -> "dict[str, int]":
    fields = {}
    if percentage is not None:
        fields["progressPercentage"] = _clamp_number("percentage", percentage, 100)
    if seconds_left is not None:
        fields["estimatedRemainingSeconds"] = _clamp_number(
            "seconds_left", seconds_left, _MAX_SECONDS_LEFT
        )
    return {name: number for name, number in fields.items() if number is not None}


def _clamp_number(name: str, value: object, maximum: int) -> "int | None":
    number = _to_number(name, value)
    if number is None or number != number:
        return None
    return int(min(max(number, 0), maximum))


def _metric_numbers(metrics: "dict[str, float]") -> "dict[str, float]":
    numbers = {}
    for name, value in metrics.items():
        number = _to_number(name, value)
        if len(name) > _MAX_NAME_LENGTH:
            _warn_once(f"the name {name} is longer than {_MAX_NAME_LENGTH} characters")
        elif number is not None:
            numbers[name] = number
    return numbers


def _print_for_katib(numbers: "dict[str, float]") -> None:
    """Print the metrics that Katib can read: ``2026-01-01T00:00:00.000000Z loss=0.3``."""
    pairs = [
        f"{name}={number!r}"
        for name, number in numbers.items()
        if re.fullmatch("[A-Za-z0-9_|-]+", name) and math.isfinite(number)
    ]
    if pairs:
        print(_format_utc_now(), *pairs, flush=True)


def _to_number(name: str, value: object) -> "float | None":
    try:
        return float(value)  # type: ignore[arg-type]
    except Exception as error:  # a tensor with several elements raises errors of its library
        _warn_once(f"{name} is not a number: {error}")
        return None


_warned = set()  # type: set[str]


def _warn_once(text: str) -> None:
    """Write a warning the first time it occurs; training continues."""
    if text not in _warned:
        _warned.add(text)
        sys.stderr.write(f"danlu.report: {text}\n")


# -- points ---------------------------------------------------------------------------------------


def thin_points(
    points: "Sequence[tuple[float, float]]", count: int
) -> "Sequence[tuple[float, float]]":
    """Select up to ``count`` points of a curve: its ends, and the extremes of the parts between.

    The parts are equally long in time, so that a curve keeps its shape if it is thinned repeatedly
    while it grows.
    """
    if len(points) <= count:
        return points
    begin, end = points[0][0], points[-1][0]
    parts = max(1, (count - 2) // 2)
    scale = parts / (end - begin) if end > begin else 0.0
    kept = [points[0]]
    part = []  # type: list[tuple[float, float]]
    number = 0
    for point in points[1:-1]:
        current = min(parts - 1, int((point[0] - begin) * scale))
        if part and current != number:
            kept += _select_extremes(part)
            part = []
        part.append(point)
        number = current
    if part:
        kept += _select_extremes(part)
    kept.append(points[-1])
    return kept


def _select_extremes(points: "Sequence[tuple[float, float]]") -> "Sequence[tuple[float, float]]":
    # A set, because minimum and maximum may be the same point.
    return sorted({min(points, key=_point_value), max(points, key=_point_value)})


def _point_value(point: "tuple[float, float]") -> float:
    return point[1]


def merge_points(
    before: "Mapping[str, Sequence[tuple[float, float]]]",
    after: "Mapping[str, Sequence[tuple[float, float]]]",
    max_points: int = MAX_POINTS,
) -> "dict[str, tuple[tuple[float, float], ...]]":
    """Append newer points to those of before, by metric, and ignore points already there.

    Points are ``(seconds, value)``, oldest first. A metric with more than ``max_points`` is thinned
    to half of that. Only the first :data:`MAX_SERIES` metrics are kept.
    """
    merged = {name: tuple(points) for name, points in before.items()}
    for name, points in after.items():
        if name not in merged and len(merged) >= MAX_SERIES:
            continue
        known = merged.get(name, ())
        newer = tuple(point for point in points if not known or point[0] > known[-1][0])
        whole = known + newer
        if len(whole) > max_points:
            whole = tuple(thin_points(whole, max_points // 2))
        merged[name] = whole
    return merged


# -- sending --------------------------------------------------------------------------------------


class ReportSender:
    """Sends reports from a thread: always the newest values, at most one post per interval."""

    def __init__(self, url: str, token: str, ca_cert: "str | None", interval: float) -> None:
        self._connect = _connection_factory(url, ca_cert)
        self._path = urlsplit(url).path
        self._token = token
        self._interval = self._pause = interval
        self._process = os.getpid()
        self._progress = {}  # type: dict[str, int]
        self._metrics = {}  # type: dict[str, str]
        self._points = {}  # type: dict[str, list[tuple[float, float]]]
        self._time = 0.0
        self._condition = threading.Condition()
        self._post_lock = threading.Lock()
        self._has_unsent = False
        self._thread = None  # type: threading.Thread | None

    def report(self, progress: "dict[str, int]", metrics: "dict[str, float]") -> None:
        """Queue a report and return immediately."""
        with self._condition:
            self._progress.update(progress)
            self._metrics.update((name, repr(value)) for name, value in metrics.items())
            # Points need distinct, increasing times even if the clock is set back.
            self._time = max(time.time(), self._time + 1e-6)
            for name, value in metrics.items():
                self._add_point(name, (round(self._time, 6), value))
            self._has_unsent = True
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run_loop, name="danlu.report", daemon=True
                )
                self._thread.start()
                _register_at_exit(self.flush)
            self._condition.notify()

    def _add_point(self, name: str, point: "tuple[float, float]") -> None:
        points = self._points.get(name)
        if points is None and len(self._points) < MAX_SERIES:
            points = self._points[name] = []
        if points is not None and abs(point[1]) < float("inf"):
            points.append(point)
            if len(points) > MAX_POINTS:
                points[:] = thin_points(points, MAX_POINTS // 2)

    def flush(self) -> None:
        """Send what is still queued. Does nothing in a forked process, which has no thread."""
        if self._process == os.getpid():
            self._send_pending(_FLUSH_TIMEOUT)

    def _run_loop(self) -> None:
        while True:
            with self._condition:
                while not self._has_unsent:
                    self._condition.wait()
            self._send_pending(_POST_TIMEOUT)
            time.sleep(self._pause)

    def _send_pending(self, timeout: float) -> None:
        # Under a lock, so that an older report never arrives after a newer one.
        with self._post_lock:
            with self._condition:
                if not self._has_unsent:
                    return
                self._has_unsent = False
                status = dict(self._progress)  # type: dict[str, object]
                metrics = list(self._metrics.items())[-_MAX_METRICS:]
                points, self._points = self._points, {}
            status["lastUpdatedTime"] = _format_utc_now()
            status["metrics"] = [{"name": name, "value": value} for name, value in metrics]
            try:
                self._post_body(_request_body(status, points), timeout)
                self._pause = self._interval
            except Exception as error:
                _warn_once(f"cannot send the report: {error}")
                self._pause = min(2 * self._pause, _MAX_RETRY_SECONDS)
                with self._condition:
                    self._has_unsent = True
                    merged = merge_points(points, self._points)
                    self._points = {name: list(series) for name, series in merged.items()}

    def _post_body(self, body: bytes, timeout: float) -> None:
        connection = self._connect(timeout)
        try:
            connection.request("POST", self._path, body, self._request_headers())
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        if response.status >= 500:
            raise OSError(f"{response.status} {response.reason}")
        if response.status >= 300:
            # No exception, so no retry: the server would reject it again.
            text = content.decode(errors="replace")
            _warn_once(f"the server rejected the report: {response.status} {text}")

    def _request_headers(self) -> "dict[str, str]":
        # Read for every post: the kubelet rotates projected tokens.
        with open(self._token) as file:
            token = file.read().strip()
        return {"Authorization": "Bearer " + token, "Content-Type": "application/json"}


def _request_body(
    status: "dict[str, object]", points: "Mapping[str, Sequence[tuple[float, float]]]"
) -> bytes:
    """Encode a report within the protocol's limit, thinning the points if necessary."""
    room = _MAX_BODY_BYTES - len(json.dumps({"trainerStatus": status})) - 128 * (len(points) + 1)
    count = max(0, room) // _MAX_POINT_BYTES // max(1, len(points))
    body = {"trainerStatus": status}  # type: dict[str, object]
    if points and count >= 4:
        body["danluPoints"] = {name: thin_points(line, count) for name, line in points.items()}
    return json.dumps(body).encode()


def _connection_factory(url: str, ca_cert: "str | None") -> "Callable[[float], HTTPConnection]":
    """Return a function that creates a connection; proxies are not used.

    Everything is imported here, in the main thread: if a process is forked while a thread imports a
    module, the import lock is never released in the child.
    """
    from http.client import HTTPConnection, HTTPSConnection

    parts = urlsplit(url)
    host, port = (parts.hostname or "").encode("idna").decode(), parts.port
    if parts.scheme != "https":
        return lambda timeout: HTTPConnection(host, port, timeout=timeout)
    import ssl  # a heavy import, only for https

    context = ssl.create_default_context(cafile=ca_cert)
    return lambda timeout: HTTPSConnection(host, port, timeout=timeout, context=context)


def _format_utc_now() -> str:
    """Return the current time in RFC 3339 with microseconds."""
    seconds = time.time()
    whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))
    return f"{whole}.{int(seconds % 1 * 1e6):06d}Z"


#: By process ID: a forked process needs its own sender, because threads are not inherited.
_senders = {}  # type: dict[int, ReportSender]


def _get_sender() -> "ReportSender | None":
    """Return the sender of this process, or None if no server is configured."""
    known = _senders.get(os.getpid())
    if known is not None:
        return known
    url, token = os.environ.get(URL), os.environ.get(TOKEN)
    if not url or not token:
        return None
    is_local = urlsplit(url).hostname in ("127.0.0.1", "::1", "localhost")
    interval = LOCAL_INTERVAL if is_local else CLUSTER_INTERVAL
    sender = ReportSender(url, token, os.environ.get(CA_CERT) or None, interval)
    return _senders.setdefault(os.getpid(), sender)


def _register_at_exit(function: "object") -> None:
    atexit.register(function)  # type: ignore[arg-type]
    util = sys.modules.get("multiprocessing.util")
    if util is not None:
        # Processes of multiprocessing exit without running atexit functions.
        util.Finalize(None, function, exitpriority=0)
