"""Return values and exceptions from a replica to the submitter.

Both are encoded in the safe format of ``encoding.py``. A value is pickled only if the submitter
trusts the replica's environment (``DANLU_RESULT_FORM=pickle``), or if the format does not support
it; in that case the submitter decides whether to open the pickle.

On the submitter's machine results are written to files, named by ``DANLU_VALUE_FILE`` and
``DANLU_RAISED_FILE``. On a cluster they are sent to the operator (``DANLU_RESULTS_URL``), or
written to the container's termination message (``DANLU_TERMINATION_FILE``), which every cluster
keeps but which is short. There ``DANLU_VALUE_OF`` is the replica whose value is requested, or
``all``.
"""

import base64
import errno
import itertools
import json
import os
import pickle
import sys
import tempfile
import time
from contextlib import suppress
from typing import Any

from . import encoding, pickles

VALUE_FILE, ERROR_FILE, FORM = "DANLU_VALUE_FILE", "DANLU_RAISED_FILE", "DANLU_RESULT_FORM"
URL, TERMINATION_FILE = "DANLU_RESULTS_URL", "DANLU_TERMINATION_FILE"
VALUE_OF, REPLICA = "DANLU_VALUE_OF", "DANLU_REPLICA"
CA_CERT, TOKEN = "KUBEFLOW_TRAINER_SERVER_CA_CERT", "KUBEFLOW_TRAINER_SERVER_TOKEN"

#: The maximum length of a traceback and of an exception's message in characters, and of a pickled
#: exception in bytes.
MAX_TRACEBACK, MAX_MESSAGE, MAX_ERROR = 1 << 16, 1 << 12, 1 << 20

#: The maximum number of an exception's arguments.
_MAX_ARGUMENTS = 16

#: The maximum size of a termination message is 4096 bytes (kubelet's
#: MaxContainerTerminationMessageLength), in base64 and JSON.
MAX_TERMINATION_MESSAGE = 3000

#: How much of the end of a traceback to keep if all of it is too large.
_SHORT_TRACEBACK = 1500

#: How often a full disk is tried again, and after how many times the user is reminded of it.
_SPACE_SECONDS, _SPACE_REMINDER = 2.0, 300

_MAX_ATTEMPTS, _RETRY_SECONDS, _TIMEOUT_SECONDS = 4, 1.0, 20.0


class NotDelivered(Exception):
    """A result cannot be sent; the message says why and what to do."""


def wants_value() -> bool:
    """Return whether the value of this replica is requested."""
    if os.environ.get(VALUE_FILE):
        return True
    replica = os.environ.get(VALUE_OF, "")
    return bool(replica) and replica in ("all", os.environ.get(REPLICA, "")) and _can_send()


def return_values(values: "dict[str, Any]", limit: int) -> None:
    """Return values by name, at most ``limit`` bytes.

    Raises :class:`pickles.NotSent` for a value that cannot be encoded, and :class:`NotDelivered`.
    """
    path = os.environ.get(VALUE_FILE)
    try:
        data = encode_values(values, limit)
    except pickles.NotSent as error:
        # On a cluster other directories are lost with the pod.
        if path and error.hint == pickles.TOO_LARGE_HINT:
            _print_message(f"the return value is too large; {_keep_values(values)}")
        raise
    if path:
        _write_value(path, data, values)
    else:
        _send_result("value", bytes(data))


def encode_values(values: "dict[str, Any]", limit: int) -> encoding.Encoded:
    """Encode values by name; raises :class:`pickles.NotSent`."""
    encoded = {}
    room = limit
    for name, value in values.items():
        try:
            encoded[name] = entry = _encode_value(name, value, limit, room)
        except pickles.NotSent as error:
            error.name = name
            raise
        room -= entry["data"].size
    return encoding.encode({"python": pickles.python_version(), "values": encoded})


def _encode_value(name: str, value: Any, limit: int, room: int) -> "dict[str, Any]":
    reason = hint = ""
    if os.environ.get(FORM) != "pickle":
        try:
            data = encoding.encode(value, name)
        except encoding.NotPlain as error:
            reason, hint = str(error), error.hint
        else:
            pickles.check_size(data.size, limit, room)
            return {"form": "plain", "data": data}
    entry = pickles.pickle_value(name, value, max_bytes=limit, room=room)
    data = encoding.Encoded([entry["data"]])
    return {**entry, "form": "pickle", "data": data, "reason": reason, "hint": hint}


# -- exceptions -----------------------------------------------------------------------------------


def can_report_error() -> bool:
    """Return whether the submitter receives exceptions of this replica."""
    return bool(os.environ.get(ERROR_FILE)) or _can_send()


def report_error(report: "dict[str, Any]") -> None:
    """Send the description of an exception (see :func:`describe_error`).

    If it is too large, send a shorter one. Does not raise if that fails too: the program has
    already failed.
    """
    path = os.environ.get(ERROR_FILE)
    if path:
        try:
            write_atomically(path, encoding.encode(report))
        except OSError as error:
            print(f"danlu: cannot report the exception: {error}", file=sys.stderr)
        return
    text, message = report["text"], report["message"]
    shorter = dict(report, error=None, arguments=None)
    short = dict(shorter, text=text[-_SHORT_TRACEBACK:], message=message[:200])
    shortest = dict(short, text=text[-_SHORT_TRACEBACK // 4 :], message=message[:100])
    for candidate in (report, shorter, short, shortest):
        try:
            _send_result("raised", bytes(encoding.encode(candidate)))
        except NotDelivered:
            continue
        return


def describe_error(error: BaseException, text: str, **fields: Any) -> "dict[str, Any]":
    """Describe an exception whose traceback is ``text``.

    A builtin exception is described by its type and arguments, if those are plain. The pickled
    exception is added only if the environment is trusted.
    """
    is_builtin = type(error).__module__ == "builtins"
    return {
        "text": _shorten_text(text),
        "type": type(error).__name__[:200],
        "message": _exception_message(error)[:MAX_MESSAGE],
        "line": None,
        "time": time.time(),
        "round": "",
        "refused": False,
        "hint": "",
        "python": pickles.python_version(),
        "arguments": _plain_arguments(error) if is_builtin else None,
        "error": _pickle_error(error) if os.environ.get(FORM) == "pickle" else None,
        **fields,
    }


def _plain_arguments(error: BaseException) -> "list[Any] | None":
    """Return the arguments of an exception if all of them are short strings and numbers."""
    arguments = list(error.args)
    if len(arguments) > _MAX_ARGUMENTS:
        return None
    for value in arguments:
        if type(value) not in (type(None), bool, int, float, str):
            return None
        if isinstance(value, str) and len(value) > MAX_MESSAGE:
            return None
    return arguments


def _exception_message(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:
        return "<message not available>"


def _shorten_text(text: str) -> str:
    """Cut out the middle of a long text."""
    if len(text) <= MAX_TRACEBACK:
        return text
    head, tail = text[: MAX_TRACEBACK // 4], text[-3 * MAX_TRACEBACK // 4 :]
    omitted = len(text) - len(head) - len(tail)
    return f"{head}\n… {omitted} characters omitted, see the log …\n{tail}"


def _pickle_error(error: BaseException) -> "dict[str, Any] | None":
    try:
        pickled = pickles.pickle_value("error", error, max_bytes=MAX_ERROR, room=MAX_ERROR)
        # Many exceptions can be pickled but not unpickled.
        pickle.loads(pickled["data"])
    except Exception:
        return None
    return pickled


# -- files and requests ---------------------------------------------------------------------------


def write_atomically(path: str, data: encoding.Encoded) -> None:
    """Write a file atomically; if that fails, nothing is left that takes space."""
    temporary = f"{path}.{os.getpid()}"
    try:
        with open(temporary, "wb") as file:
            for part in data.parts:
                file.write(part)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise


def _write_value(path: str, data: encoding.Encoded, values: "dict[str, Any]") -> None:
    """Write the value's file; on a full disk wait for space, because training took longer.

    If it cannot be written, or the process is ended while it waits, the values are kept as a pickle
    in another directory, and a message says where. Raises :class:`NotDelivered`.
    """
    try:
        for attempt in itertools.count():
            try:
                write_atomically(path, data)
                return
            except OSError as error:
                if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                    raise
                if attempt % _SPACE_REMINDER == 0:
                    _print_message(
                        f"no space for the return value ({data.size >> 10} KiB) in the job's"
                        f" directory: {error.strerror}; waiting until there is"
                    )
            time.sleep(_SPACE_SECONDS)
    except OSError as error:
        kept = _keep_values(values)
        raise NotDelivered(f"{error.strerror or error}; {kept}") from error
    except BaseException:
        _print_message(f"stopped before the value was returned; {_keep_values(values)}")
        raise


def _keep_values(values: "dict[str, Any]") -> str:
    """Pickle values in another directory; return a message about where they are."""
    name = f"danlu-values-{os.environ.get(REPLICA, '') or 'replica'}-{os.getpid()}.pickle"
    for directory in dict.fromkeys((os.getcwd(), tempfile.gettempdir())):
        path = os.path.join(directory, name)
        try:
            with open(path, "wb") as file:
                pickle.dump(values, file)
        except Exception:  # a full disk, or values that cannot be pickled
            with suppress(OSError):
                os.unlink(path)
        else:
            return f"it is kept in {path} (pickle.load returns it by name)"
    return "no other directory has space for it"


def _print_message(text: str) -> None:
    print(f"danlu: {text}", file=sys.stderr, flush=True)


def _can_send() -> bool:
    return bool(os.environ.get(URL) or os.environ.get(TERMINATION_FILE))


def _send_result(kind: str, data: bytes) -> None:
    url = os.environ.get(URL)
    if url:
        _put_with_retries(f"{url.rstrip('/')}/{os.environ[REPLICA]}/{kind}", data)
    else:
        _write_termination_message(kind, data)


def _write_termination_message(kind: str, data: bytes) -> None:
    if len(data) > MAX_TERMINATION_MESSAGE:
        raise NotDelivered(
            f"it takes {len(data)} bytes, but a termination message holds only"
            f" {MAX_TERMINATION_MESSAGE}: write it to a volume, or use danlu's operator, which"
            " receives results"
        )
    text = json.dumps({kind: base64.b64encode(data).decode()})
    try:
        with open(os.environ[TERMINATION_FILE], "w") as file:
            file.write(text)
    except OSError as error:
        raise NotDelivered(f"cannot write the termination message: {error}") from error


def _put_with_retries(url: str, data: bytes) -> None:
    # Imported late: most replicas return nothing.
    from urllib.error import HTTPError

    reason = ""
    for attempt in range(_MAX_ATTEMPTS):
        if attempt:
            time.sleep(_RETRY_SECONDS * attempt)
        try:
            _put_once(url, data)
            return
        except HTTPError as error:
            reason = _error_message(error.code, error.read(2000))
            if error.code < 500 and error.code != 429:
                break
        except (OSError, ValueError) as error:
            reason = str(error)
    raise NotDelivered(f"the operator did not accept it: {reason}")


def _error_message(code: int, body: bytes) -> str:
    """Return the message of a Kubernetes Status, or the code and the body of another response."""
    text = body.decode("utf-8", "replace").strip()
    try:
        return str(json.loads(text)["message"])
    except (ValueError, KeyError, TypeError):
        return f"{code}: {text}"


def _put_once(url: str, data: bytes) -> None:
    # Imported late: see _put_with_retries.
    from urllib.request import Request, build_opener

    headers = {"Content-Type": "application/octet-stream"}
    token = os.environ.get(TOKEN)
    if token:
        with open(token) as file:
            headers["Authorization"] = f"Bearer {file.read().strip()}"
    request = Request(url, data=data, headers=headers, method="PUT")
    with build_opener(*_url_handlers(url)).open(request, timeout=_TIMEOUT_SECONDS):
        pass


def _url_handlers(url: str) -> "list[Any]":
    """Return handlers that use no proxy and trust the operator's certificate authority."""
    # Imported late: see _put_with_retries.
    import ssl
    from urllib.request import HTTPSHandler, ProxyHandler

    if not url.startswith("https:"):
        return [ProxyHandler({})]
    context = ssl.create_default_context(cafile=os.environ.get(CA_CERT) or None)
    return [ProxyHandler({}), HTTPSHandler(context=context)]
