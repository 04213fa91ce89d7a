"""The host's side of a connection to a kernel inside an environment.

:mod:`danlu.notebook.inside.extension` describes the messages. What a kernel sends is untrusted:
every size is limited, answers have a fixed form, and pickles are written to files and never loaded.
"""

from __future__ import annotations

import os
import queue
import signal
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from danlu.errors import DanluError, UsageError
from danlu.notebook.types import SentVariable
from danlu.util.decoding import convert_value
from danlu.util.human import format_size
from danlu.util.sanitize import escape_unprintable

#: What a program of the environment relays in one piece (:mod:`danlu.engine.ssh.inside`).
_MAX_FRAME = 1 << 20
_FRAME_HEADER = _LENGTH = 4
#: The text of a cell and its message; other messages are much shorter.
MAX_MESSAGE = 8 << 20
_MAX_VARIABLES = 1000
_MAX_FILES = 10_000
_ANSWER_TIMEOUT = 600.0
_CHUNK_SIZE = 1 << 18
_MAX_TEXT = 4096

_T = TypeVar("_T")
_Name = Annotated[str, msgspec.Meta(max_length=200)]


class KernelRequest(msgspec.Struct, frozen=True):
    """What a kernel asks for; ``directory`` is its working directory."""

    request: Literal["cell", "is_job", "jobs", "complete"]
    text: str
    rich: bool = False
    directory: Annotated[str, msgspec.Meta(max_length=4096)] = ""


class _VariableMessage(msgspec.Struct, frozen=True):
    variable: _Name
    size: Annotated[int, msgspec.Meta(ge=0)]
    modules: Annotated[list[_Name], msgspec.Meta(max_length=10_000)] = []
    libraries: Annotated[dict[_Name, list[_Name]], msgspec.Meta(max_length=10_000)] = {}


class _FileMessage(msgspec.Struct, frozen=True):
    """A file of a module: its parts are names, none of them ``..``, ``.`` or empty."""

    file: Annotated[str, msgspec.Meta(pattern=r"^(?!\.\.?(/|$))[^/\0]+(/(?!\.\.?(/|$))[^/\0]+)*$")]
    size: Annotated[int, msgspec.Meta(ge=0)]


class _ModuleAnswer(msgspec.Struct, frozen=True):
    refused: str = ""
    reason: str = ""


class _PickleAnswer(msgspec.Struct, frozen=True):
    python: Annotated[str, msgspec.Meta(pattern=r"^\d+(\.\d+){1,2}$")] = ""
    undefined: str = ""
    similar: list[str] = []
    refused: str = ""
    reason: str = ""
    hint: str = ""


class InvalidMessage(Exception):
    """A kernel sent what the protocol does not allow."""


class KernelConnection:
    """One request of a kernel, received through a program that relays a Unix socket.

    ``interrupt`` is called, in a thread, when the kernel is interrupted or ends.
    """

    def __init__(
        self,
        relay: socket.socket,
        interrupt: Callable[[], object] = lambda: os.kill(os.getpid(), signal.SIGINT),
    ) -> None:
        self._relay = relay
        self._interrupt = interrupt
        self._received = b""
        self._sending = threading.Lock()
        self._answers: queue.Queue[Any] = queue.Queue()
        self._destination: Path | None = None
        self._expected: set[str] = set()
        self._room = 0
        self._variables: list[SentVariable] = []
        self._modules: Path | None = None
        self._files: list[Path] = []

    def read_request(self) -> KernelRequest:
        """Read the request; raise :class:`InvalidMessage` or :class:`OSError`."""
        return _convert_message(self._read_message(), KernelRequest)

    def start_reading(self) -> None:
        """Handle all further messages in a thread."""
        threading.Thread(target=self._read_messages, name="kernel", daemon=True).start()

    def send(self, message: Mapping[str, Any], data: bytes = b"") -> None:
        """Send a message; do nothing if the kernel is gone."""
        encoded = msgspec.json.encode(message)
        with self._sending:
            try:
                self._relay.sendall(len(encoded).to_bytes(_LENGTH, "big") + encoded)
                self._relay.sendall(data)
            except OSError:
                pass  # the thread that reads interrupts what is done for it

    # -- from the kernel --------------------------------------------------------------------------

    def _read_messages(self) -> None:
        try:
            while True:
                message = self._read_message()
                if message == {"interrupt": True}:
                    self._interrupt()
                elif "variable" in message:
                    self._receive_variable(_convert_message(message, _VariableMessage))
                elif "file" in message:
                    self._receive_module_file(_convert_message(message, _FileMessage))
                elif "answer" in message:
                    self._answers.put(message["answer"])
                else:
                    raise InvalidMessage("unknown message")
        except (OSError, InvalidMessage) as error:
            self._answers.put(InvalidMessage(str(error)))
            self._interrupt()

    def _receive_variable(self, message: _VariableMessage) -> None:
        """Write a pickle that was asked for to its file."""
        if message.variable not in self._expected or self._destination is None:
            raise InvalidMessage("a variable that was not asked for")
        if message.size > self._room:
            raise InvalidMessage("variables exceed their limit")
        self._expected.discard(message.variable)
        self._receive_file(self._destination / f"{message.variable}.pickle", message.size)
        self._variables.append(
            SentVariable(message.variable, message.size, tuple(message.modules), message.libraries)
        )

    def _receive_module_file(self, message: _FileMessage) -> None:
        """Write a file of a module that was asked for to its path."""
        top = message.file.partition("/")[0].partition(".")[0]
        if self._modules is None or top not in self._expected:
            raise InvalidMessage("a module that was not asked for")
        if message.size > self._room or len(self._files) == _MAX_FILES:
            raise InvalidMessage("modules exceed their limit")
        path = self._modules / message.file
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._receive_file(path, message.size)
        except FileExistsError as error:
            raise InvalidMessage("a file that was sent already") from error
        self._files.append(path)

    def _receive_file(self, path: Path, missing: int) -> None:
        self._room -= missing
        with path.open("xb") as file:
            while missing:
                data = self._read_bytes(min(missing, _CHUNK_SIZE))
                file.write(data)
                missing -= len(data)

    def _read_message(self) -> dict[str, Any]:
        size = int.from_bytes(self._read_bytes(_LENGTH), "big")
        if size > MAX_MESSAGE:
            raise InvalidMessage("a message is too long")
        try:
            message = msgspec.json.decode(self._read_bytes(size))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise InvalidMessage(str(error)) from error
        if not isinstance(message, dict):
            raise InvalidMessage("not an object")
        return message

    def _read_bytes(self, size: int) -> bytes:
        while len(self._received) < size:
            self._received += self._read_frame()
        data, self._received = self._received[:size], self._received[size:]
        return data

    def _read_frame(self) -> bytes:
        length = int.from_bytes(self._read_relay(_FRAME_HEADER), "big")
        if not 0 < length <= _MAX_FRAME:
            raise InvalidMessage("a frame is too long" if length else "the kernel has ended")
        return self._read_relay(length)

    def _read_relay(self, size: int) -> bytes:
        parts, missing = [], size
        while missing:
            data = self._relay.recv(min(missing, _CHUNK_SIZE))
            if not data:
                raise OSError("the kernel has ended")
            parts.append(data)
            missing -= len(data)
        return b"".join(parts)

    # -- questions --------------------------------------------------------------------------------

    def ask_texts(
        self, question: Literal["texts", "kinds", "syntax"], names: Sequence[str]
    ) -> Mapping[str, str]:
        """Ask about variables, or whether code is valid; return the texts by what was asked."""
        self.send({"ask": question, "names": names})
        texts = _convert_message(self._wait_for_answer(), dict[str, str])
        return {name: texts[name] for name in names if name in texts}

    def receive_pickles(
        self, names: Sequence[str], directory: Path, *, limit: int
    ) -> tuple[str, list[SentVariable]]:
        """Write pickles of variables to the directory; return their Python's version as well.

        Raises :class:`UsageError` if the kernel did not send one, and says why.
        """
        if len(names) > _MAX_VARIABLES:
            raise UsageError(f"a cell can send {_MAX_VARIABLES} variables")
        directory.mkdir(parents=True, exist_ok=True)
        self._variables, self._expected = [], set(names)
        self._destination, self._room = directory, limit
        self.send({"ask": "pickles", "names": names, "limit": limit})
        answer = _convert_message(self._wait_for_answer(), _PickleAnswer)
        self._destination = None
        if answer.undefined in names:
            similar = [_clean_text(name) for name in answer.similar[:3]]
            hint = f"did you mean {' or '.join(similar)}?" if similar else ""
            raise UsageError(
                f"variable {answer.undefined} is not defined",
                hint=hint or "run the cell that sets it first",
            )
        if answer.refused:
            raise UsageError(
                f"cannot send {_clean_text(answer.refused)}: {_clean_text(answer.reason)}",
                hint=_clean_text(answer.hint),
            )
        if self._expected:
            raise InvalidMessage(f"{len(self._expected)} variables are missing")
        return answer.python, sorted(self._variables, key=lambda variable: variable.name)

    def receive_modules(
        self, names: Sequence[str], project: str, directory: Path, *, limit: int
    ) -> list[Path]:
        """Write the files of the project's own modules among ``names``; return them.

        ``project`` is its directory there; names are those of top-level modules. Raises
        :class:`UsageError` if the kernel did not send one, and says why.
        """
        self._modules, self._files = directory, []
        self._expected, self._room = set(names), limit
        self.send({"ask": "modules", "names": names, "project": project, "limit": limit})
        answer = _convert_message(self._wait_for_answer(), _ModuleAnswer)
        self._modules = None
        if answer.refused:
            raise UsageError(
                f"cannot send module {_clean_text(answer.refused)}: {_clean_text(answer.reason)}",
                hint=f"modules may have {format_size(limit)} in all: io.copy in the build file"
                " copies larger ones into the image",
            )
        return self._files

    def _wait_for_answer(self) -> Any:
        try:
            answer = self._answers.get(timeout=_ANSWER_TIMEOUT)
        except queue.Empty:
            raise InvalidMessage("no answer") from None
        if isinstance(answer, InvalidMessage):
            raise answer
        return answer


def _convert_message(value: Any, type: type[_T]) -> _T:
    try:
        return convert_value(value, type)
    except msgspec.ValidationError as error:
        raise InvalidMessage(str(error)) from error


def _clean_text(text: str) -> str:
    return escape_unprintable(text, limit=_MAX_TEXT)


def describe_error(error: BaseException, lines: Sequence[str]) -> dict[str, Any]:
    """Return an error for the kernel, which shows ``lines``.

    Its public fields are those of :class:`~danlu.notebook.errors.CellFailed`; the cause is a
    built-in exception.
    """
    fields = {
        name: getattr(error, name)
        for name in ("job", "replica", "reason", "traceback", "line", "details", "hint", "message")
        if hasattr(error, name)
    }
    cause = error.__cause__
    has_cause = isinstance(error, DanluError) and cause is not None
    is_plain = has_cause and type(cause).__module__ == "builtins"
    return {
        "type": type(error).__name__,
        "message": str(error),
        "lines": list(lines),
        "fields": fields,
        "cause": {"type": type(cause).__name__, "args": list(cause.args)}
        if is_plain and cause is not None
        else None,
    }
