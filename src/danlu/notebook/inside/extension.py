"""``%load_ext danlu.notebook`` in a kernel of an environment: job cells, run by danlu on the host.

The environment's bridge (:mod:`danlu.notebook.environment_bridge`) listens on a Unix socket in the
directory ``DANLU_NOTEBOOK``. Each cell is a connection. A message is the length of a JSON object in
four bytes, the object, and ``size`` bytes if it has that key:

========  ======================================================================================
kernel    ``request`` (``cell``, ``is_job``, ``jobs``, ``complete``) with its ``text``;
          ``answer`` to a question; ``variable``, a pickle; ``file`` of a module; ``interrupt``
host      ``publish`` (a display, by MIME type), ``write`` (text for stdout), ``ask`` (a
          question about variables or modules), ``value`` (encoded values of a replica), and at
          the end ``done`` or ``error``
========  ======================================================================================

Nothing is parsed here: options, their errors and what is shown come from the host. Values are
decoded here, because the host does not unpickle what comes out of an environment.
"""

import asyncio
import builtins
import contextlib
import contextvars
import difflib
import importlib.util
import json
import os
import pickle
import queue
import re
import signal
import socket
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

from danlu.replica_runtime import encoding, pickles

VARIABLE = "DANLU_NOTEBOOK"
SOCKET = "socket"

CELL_MAGIC, DISTRIBUTED_MAGIC = "danlu_cell", "distributed"

_POLL_SECONDS = 0.2
_CONNECT_SECONDS = 30.0
_LENGTH = 4
_CHUNK_SIZE = 1 << 18

#: Cells that the host is not asked about: no line starts like a directive.
_CANDIDATE = re.compile(r"(?:\A|[\r\n])[ \t\f]*%[\w \t-]+=")
_DISTRIBUTED = re.compile(r"(?:[ \t]*\n)*%%" + DISTRIBUTED_MAGIC + r"(?:[ \t\n].*)?", re.DOTALL)


class NotebookError(Exception):
    """An error that the host has described; ``lines`` is how it is shown."""

    lines = ()  # type: tuple[str, ...]

    def _render_traceback_(self) -> "list[str]":
        """Return what IPython shows in place of a traceback through this module."""
        return list(self.lines)


class BridgeLost(NotebookError):
    """The host does not answer."""

    def __init__(self, reason: str) -> None:
        super().__init__("danlu on the host does not answer: " + reason)
        self.lines = (
            str(self),
            "hint: `danlu up` in the project, on the host, connects the notebook again",
        )


class HostConnection:
    """A connection to the host for one request."""

    def __init__(self, request: str, text: str, shell: Any) -> None:
        self._shell = shell
        self._sending = threading.Lock()
        self._is_broken = False
        self._questions = queue.Queue()  # type: queue.Queue[dict[str, Any]]
        self._values = {}  # type: dict[str, bytes]
        self.ended = threading.Event()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._socket.settimeout(_CONNECT_SECONDS)
        try:
            self._socket.connect(os.path.join(os.environ.get(VARIABLE, "/"), SOCKET))
        except OSError as error:
            self._socket.close()
            raise BridgeLost(error.strerror or str(error)) from None
        self._socket.settimeout(None)
        is_rich = getattr(shell, "kernel", None) is not None
        self.send({"request": request, "text": text, "rich": is_rich, "directory": os.getcwd()})
        # IPython's displays find the cell to write to through context variables.
        context = contextvars.copy_context()
        reader = threading.Thread(target=context.run, args=(self._read_messages,), daemon=True)
        reader.start()

    def send(self, message: "dict[str, Any]", data: bytes = b"") -> None:
        """Send a message."""
        encoded = json.dumps(message).encode()
        with self._sending:
            self._is_broken = True
            self._socket.sendall(len(encoded).to_bytes(_LENGTH, "big") + encoded)
            self._socket.sendall(data)
            self._is_broken = False

    def interrupt(self) -> None:
        """Interrupt what the host does. Each further one is more urgent."""
        with contextlib.suppress(OSError):  # it has ended
            if self._is_broken:  # interrupted within a message
                self._socket.shutdown(socket.SHUT_RDWR)
            else:
                self.send({"interrupt": True})

    def wait_for_end(self) -> Any:
        """Answer the host's questions until the request is done, and return its result.

        Raises :class:`NotebookError`. An interrupt is passed on and raised immediately; the host
        goes on to show how the job stops.
        """
        try:
            while True:
                try:
                    message = self._questions.get(timeout=_POLL_SECONDS)
                except queue.Empty:
                    continue
                if "ask" in message:
                    self._answer_question(message)
                elif "error" in message:
                    raise create_error(message["error"])
                elif "lost" in message:
                    raise BridgeLost(message["lost"])
                else:
                    self._set_results(message)
                    return message["done"]
        except KeyboardInterrupt as error:
            self.interrupt()
            watch_interrupts(self)
            error._render_traceback_ = lambda: ["KeyboardInterrupt"]  # type: ignore[attr-defined]
            raise
        except OSError as error:
            raise BridgeLost(error.strerror or str(error)) from None

    # -- from the host ----------------------------------------------------------------------------

    def _read_messages(self) -> None:
        try:
            while True:
                message = json.loads(
                    self._read_bytes(int.from_bytes(self._read_bytes(_LENGTH), "big"))
                )
                if "publish" in message:
                    self._publish_display(message)
                elif "write" in message:
                    sys.stdout.write(message["write"])
                    sys.stdout.flush()
                elif "value" in message:
                    self._values[message["value"]] = self._read_bytes(message["size"])
                else:
                    self._questions.put(message)
                    if "ask" not in message:
                        return
        except (OSError, ValueError) as error:
            self._questions.put({"lost": str(error)})
        finally:
            self.ended.set()
            self._socket.close()

    def _read_bytes(self, size: int) -> bytes:
        parts, missing = [], size
        while missing:
            data = self._socket.recv(min(missing, _CHUNK_SIZE))
            if not data:
                raise OSError("the connection was closed")
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    def _publish_display(self, message: "dict[str, Any]") -> None:
        self._shell.display_pub.publish(
            data=message["publish"],
            metadata={},
            transient={"display_id": message["id"]},
            update=message["update"],
        )

    # -- variables --------------------------------------------------------------------------------

    def _answer_question(self, message: "dict[str, Any]") -> None:
        names, values = message["names"], self._shell.user_ns
        if message["ask"] == "pickles":
            self.send({"answer": self._send_pickles(names, message["limit"])})
        elif message["ask"] == "modules":
            answer = self._send_modules(names, message["project"], message["limit"])
            self.send({"answer": answer})
        elif message["ask"] == "texts":
            known = {name: values.get(name) for name in names}
            texts = {
                name: str(value)
                for name, value in known.items()
                if isinstance(value, (str, int, float))
            }
            self.send({"answer": texts})
        elif message["ask"] == "syntax":
            self.send({"answer": {code: "valid" for code in names if is_valid(code)}})
        else:
            kinds = {}
            for name in names:
                is_module = isinstance(values.get(name), types.ModuleType)
                kinds[name] = "module" if is_module else "variable" if name in values else ""
            self.send({"answer": kinds})

    def _send_pickles(self, names: "list[str]", limit: int) -> "dict[str, Any]":
        """Pickle variables and send them; return why one of them was not sent."""
        values, room = self._shell.user_ns, limit
        for name in names:
            if name not in values:
                public = [known for known in values if not known.startswith("_")]
                return {"undefined": name, "similar": difflib.get_close_matches(name, public, 3)}
            try:
                fields = pickles.pickle_value(name, values[name], max_bytes=limit, room=room)
            except pickles.NotSent as error:
                return {"refused": name, "reason": str(error), "hint": error.hint}
            data = fields.pop("data")
            room -= len(data)
            self.send({"variable": name, "size": len(data), **fields}, data)
        return {"python": pickles.python_version()}

    def _send_modules(self, names: "list[str]", project: str, limit: int) -> "dict[str, str]":
        """Send the files of the project's own modules; return why one of them was not sent."""
        for name in names:
            for path, file in find_module_files(name, project):
                try:
                    with open(file, "rb") as stream:
                        data = stream.read(limit + 1)
                except OSError as error:
                    return {"refused": name, "reason": str(error)}
                if len(data) > limit:
                    return {"refused": name, "reason": "its files are too large"}
                limit -= len(data)
                self.send({"file": path, "size": len(data)}, data)
        return {}

    def _set_results(self, message: "dict[str, Any]") -> None:
        names = message.get("returns") or []
        if not names:
            return
        by_replica = {replica: open_values(data) for replica, data in self._values.items()}
        found = {}  # type: dict[str, Any]
        for name in names:
            each = {
                replica: values[name] for replica, values in by_replica.items() if name in values
            }
            if message["every"]:
                found[name] = each
            elif each:
                found[name] = each[""]
        self._shell.user_ns.update(found)


def open_values(data: bytes) -> "dict[str, Any]":
    """Return the values of a replica by name.

    Its pickles are loaded: a replica is a container of the same image as this kernel.
    """
    values = {}
    for name, value in encoding.decode(data)["values"].items():
        read = encoding.decode if value["form"] == "plain" else pickle.loads  # type: Any
        try:
            values[name] = read(value["data"])
        except Exception as error:
            failure = NotebookError(f"cannot read {name}, which the job returned")
            failure.lines = (f"{failure}: {type(error).__name__}: {error}",)
            raise failure from error
    return values


def find_module_files(name: str, project: str) -> "Iterator[tuple[str, str]]":
    """Yield the files of a top-level module: their paths below an entry of ``sys.path``, and here.

    Only of the project's own modules. A package has all its files, a namespace package its code.
    """
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return
    if spec is None:
        return
    directories = list(spec.submodule_search_locations or ())
    if not directories and spec.origin and _is_own_file(spec.origin, project):
        yield os.path.basename(spec.origin), spec.origin
    for directory in directories:
        for place, below, files in os.walk(directory):
            below[:] = sorted(item for item in below if item != "__pycache__" and item[0] != ".")
            for file in sorted(files):
                path = os.path.join(place, file)
                is_wanted = spec.origin not in (None, "namespace") or file.endswith(".py")
                if is_wanted and _is_own_file(path, project):
                    yield os.path.join(name, os.path.relpath(path, directory)), path


def _is_own_file(path: str, project: str) -> bool:
    real = os.path.realpath(path)
    parts = real.split(os.sep)
    is_installed = "site-packages" in parts or "dist-packages" in parts
    return real.startswith(os.path.realpath(project) + os.sep) and not is_installed


def is_valid(code: str) -> bool:
    """Return whether code is valid for this Python, which may be newer than the host's."""
    try:
        compile(code, "<cell>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return True


def create_error(description: "dict[str, Any]") -> NotebookError:
    """Return the exception for an error of the host."""
    kind = type(str(description["type"]), (NotebookError,), {"__module__": __name__})
    error = kind(description["message"])  # type: NotebookError
    error.lines = tuple(description["lines"])
    for name, value in description["fields"].items():
        setattr(error, name, value)
    cause = description.get("cause")
    if cause is not None:
        error.__cause__ = getattr(builtins, cause["type"])(*cause["args"])
    return error


def watch_interrupts(connection: HostConnection) -> None:
    """Pass interrupts on while the host stops a job and no cell runs.

    A kernel ignores them then. Does nothing outside the main thread of a kernel.
    """
    try:
        loop = asyncio.get_running_loop()
    except (AttributeError, RuntimeError):
        return
    if threading.current_thread() is not threading.main_thread():
        return

    def handle(number: int, frame: Any) -> None:
        connection.interrupt()

    def check() -> None:
        current = signal.getsignal(signal.SIGINT)
        if connection.ended.is_set():
            if current is handle:
                signal.signal(signal.SIGINT, signal.SIG_IGN)
            return
        if current is signal.SIG_IGN:
            signal.signal(signal.SIGINT, handle)
        loop.call_later(_POLL_SECONDS, check)

    loop.call_later(_POLL_SECONDS, check)


# -- magics ---------------------------------------------------------------------------------------


class Magics:
    """The magics of one shell."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    def _send_request(self, request: str, text: str) -> Any:
        return HostConnection(request, text, self._shell).wait_for_end()

    def run_distributed(self, line: str, cell: str) -> None:
        """Run the cell on the replicas of a job; `%%distributed --help` lists the options."""
        self.run_cell("", f"%%{DISTRIBUTED_MAGIC} {line}\n{cell}")

    def run_cell(self, line: str, cell: str) -> None:
        """Run a job cell; the input transformer passes the whole cell as the body."""
        self._send_request("cell", cell)

    def run_jobs(self, line: str) -> None:
        """List or control this environment's jobs: `%jobs [show|logs|attach|stop|rm NAME]`."""
        self._send_request("jobs", line)

    def complete_jobs(self, shell: Any, event: Any) -> "list[str]":
        """Complete the arguments of ``%jobs``."""
        return list(self._send_request("complete", event.line + ("" if event.symbol else " ")))

    def transform_cell(self, lines: "list[str]") -> "list[str]":
        """Turn a job cell into one line of Python, which IPython's transformers leave alone."""
        text = "".join(lines)
        if not (_DISTRIBUTED.fullmatch(text) or self._is_job(text)):
            return lines
        return [f"get_ipython().run_cell_magic({CELL_MAGIC!r}, '', {text!r})\n"]

    #: IPython skips such transformers when it only checks whether a cell is complete.
    transform_cell.has_side_effects = True  # type: ignore[attr-defined]

    def _is_job(self, text: str) -> bool:
        if not _CANDIDATE.search(text):
            return False
        try:
            return bool(self._send_request("is_job", text))
        except NotebookError:
            return False


def load_ipython_extension(ipython: Any) -> None:
    """Load the magics into an IPython shell. Called by ``%load_ext danlu.notebook``."""
    unload_ipython_extension(ipython)
    magics = Magics(ipython)
    # IPython would expand `{3}` in code such as `\d{3}`; variables are expanded in options only.
    for function in (Magics.run_distributed, Magics.run_cell):
        function._ipython_magic_no_var_expand = True  # type: ignore[attr-defined]
    ipython.register_magic_function(magics.run_distributed, "cell", DISTRIBUTED_MAGIC)
    ipython.register_magic_function(magics.run_cell, "cell", CELL_MAGIC)
    ipython.register_magic_function(magics.run_jobs, "line", "jobs")
    ipython.input_transformers_cleanup.insert(0, magics.transform_cell)
    ipython.set_hook("complete_command", magics.complete_jobs, str_key="%jobs")


def unload_ipython_extension(ipython: Any) -> None:
    """Remove the magics from an IPython shell. Called by ``%unload_ext danlu.notebook``."""
    transformers = ipython.input_transformers_cleanup
    transformers[:] = [item for item in transformers if not _is_own(item)]
    for kind, name in (("cell", DISTRIBUTED_MAGIC), ("cell", CELL_MAGIC), ("line", "jobs")):
        ipython.magics_manager.magics[kind].pop(name, None)


def _is_own(transformer: Any) -> bool:
    return isinstance(getattr(transformer, "__self__", None), Magics)
