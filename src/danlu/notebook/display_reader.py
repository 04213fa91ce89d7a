"""Show what rank 0 of a job displays as outputs of the cell, while the job runs."""

from __future__ import annotations

import os
from base64 import b64encode
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from danlu.jobs.local.file_exchange import open_untrusted_file
from danlu.replica_runtime import encoding
from danlu.replica_runtime.display import MAX_FILE, MAX_OUTPUT
from danlu.util.sanitize import strip_control_sequences

#: How many outputs of a job to show, and how many bytes of them to read at a time.
_MAX_OUTPUTS, _CHUNK_SIZE = 100, 512 << 10

#: The signatures at the start of image files.
_IMAGE_SIGNATURES = {"image/png": b"\x89PNG\r\n\x1a\n", "image/jpeg": b"\xff\xd8\xff"}

#: Markup can contain scripts or load images from anywhere, so it is shown only if the environment
#: is trusted.
_MARKUP = ("text/html", "image/svg+xml", "text/markdown", "text/latex")

#: The size of the length in front of each output.
_LENGTH_SIZE = 8

#: An offset past any file: reading stops for good.
_END_OFFSET = 1 << 62


class DisplayReader:
    """Reads the outputs of one job from its file and shows each of them once.

    ``find`` takes the job's name and returns the path of the file and whether the job is trusted,
    or None if there is no file yet. ``publish`` shows an output by MIME type.
    """

    def __init__(
        self,
        find: Callable[[str], tuple[Path, bool] | None],
        publish: Callable[[dict[str, str]], object],
    ) -> None:
        self._find = find
        self._publish = publish
        self._offset = 0
        self._count = 0

    def show_new(self, job: str, *, everything: bool = False) -> None:
        """Show new outputs; at most about one chunk of them unless ``everything``."""
        found = self._find(job) if job else None
        if found is None:
            return
        path, trusted = found
        room = _CHUNK_SIZE
        for data in self._read_outputs(path):
            self._count += 1
            if self._count >= _MAX_OUTPUTS or self._offset > MAX_FILE:
                self._offset = _END_OFFSET
                message = f"… only the first {self._count} outputs of {job} are shown"
                self._publish({"text/plain": message})
                return
            try:
                self._publish(sanitize_output(encoding.decode(data), trusted=trusted))
            except encoding.DecodeError as error:
                self._publish({"text/plain": f"cannot read an output of {job}: {error}"})
            room -= len(data)
            if room < 0 and not everything:
                return

    def _read_outputs(self, path: Path) -> Iterator[bytes]:
        """Yield the complete outputs after the last one."""
        try:
            file = open_untrusted_file(path)
        except OSError:
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            while self._offset + _LENGTH_SIZE <= size:
                file.seek(self._offset)
                length = int.from_bytes(file.read(_LENGTH_SIZE), "big")
                if length > MAX_OUTPUT:
                    # Not written by us. Without a valid length the next output cannot be found.
                    self._offset = _END_OFFSET
                    return
                if self._offset + _LENGTH_SIZE + length > size:
                    return
                self._offset += _LENGTH_SIZE + length
                yield file.read(length)


def sanitize_output(forms: Any, *, trusted: bool) -> dict[str, str]:
    """Return the forms of an output that are safe to show, by MIME type.

    Control characters are stripped from text, images must have the signature of their type, and
    markup requires a ``trusted`` environment. Raises :class:`DecodeError` for anything but a
    mapping.
    """
    if not isinstance(forms, Mapping):
        raise encoding.DecodeError("not a mapping by MIME type")
    shown = {"text/plain": ""}
    for mime, form in forms.items():
        if mime == "text/plain" and isinstance(form, str):
            shown[mime] = "\n".join(map(strip_control_sequences, form.split("\n")))
        elif (
            mime in _IMAGE_SIGNATURES
            and isinstance(form, bytes)
            and form.startswith(_IMAGE_SIGNATURES[mime])
        ):
            shown[mime] = b64encode(form).decode()
        elif trusted and mime in _MARKUP and isinstance(form, str):
            shown[mime] = form
    return shown
