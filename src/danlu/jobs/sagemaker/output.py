"""What a training job saved, below its prefix in S3: archives of output and model, checkpoints.

Everything there is untrusted: programs choose the names, and others may write to the bucket.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import BinaryIO

from anyio import to_thread

from danlu.errors import OutsideError, UsageError
from danlu.jobs.local.file_exchange import read_untrusted_file
from danlu.oci.archive import ArchiveLayout, unpack_archive
from danlu.util.files import remove_tree
from danlu.util.safe_paths import replace_beneath

CHECKPOINTS = "checkpoints/"
_ARCHIVES = {"model": "output/model.tar.gz", "output": "output/output.tar.gz"}
#: The directory in the archive of output in which replicas leave what they return.
_RESULTS = "danlu"
#: Maximum size of a reported exception, in bytes.
_MAX_RAISED = 8 << 20
_HINT = "a program of the job wrote it; `aws s3 ls s3://BUCKET/danlu/jobs/NAME/` shows all files"

Download = Callable[[str, BinaryIO], Awaitable[bool]]
"""Copies an object of the job to a file; False if it does not exist."""


async def collect_results(
    download: Download, replicas: Sequence[str]
) -> tuple[Mapping[str, bytes], Mapping[str, bytes]]:
    """Return the encoded values and exceptions that replicas left, by their names.

    Raises :class:`OutsideError` for an archive that is damaged, or that no job of danlu leaves.
    """
    values: dict[str, bytes] = {}
    raised: dict[str, bytes] = {}
    with TemporaryDirectory(prefix="danlu-") as directory:
        root = Path(directory, "output")
        if not await _unpack_archive(download, "output", root):
            return values, raised
        for name in replicas:
            with suppress(OSError):
                values[name] = read_untrusted_file(root / _RESULTS / f"value.{name}")
            with suppress(OSError):
                raised[name] = read_untrusted_file(root / _RESULTS / f"raised.{name}", _MAX_RAISED)
    return values, raised


async def fetch_output(
    download: Download, checkpoints: Sequence[str], directory: Path
) -> Sequence[str]:
    """Copy model, output and checkpoints to a new directory; return which of them there were.

    ``checkpoints`` are the keys of the job's checkpoints. Nothing is left after an error. Raises
    :class:`UsageError` if the directory exists, :class:`OutsideError` for what the job must not
    have left.
    """
    partial = directory.with_name(f".{directory.name}.{os.getpid()}")
    try:
        if directory.exists() or directory.is_symlink():
            raise UsageError(f"{directory} exists already", hint="remove it, or name another")
        partial.mkdir(parents=True)
        found = [
            name for name in _ARCHIVES if await _unpack_archive(download, name, partial / name)
        ]
        results = partial / "output" / _RESULTS
        if results.is_dir() and not results.is_symlink():
            remove_tree(results)
        for key in checkpoints:
            await _download_checkpoint(download, key, partial)
        if checkpoints:
            found.append(CHECKPOINTS.rstrip("/"))
        partial.rename(directory)
    except OSError as error:
        raise OutsideError(f"cannot write to {directory}: {error.strerror}") from error
    finally:
        if partial.exists():
            remove_tree(partial)
    return found


async def _unpack_archive(download: Download, name: str, root: Path) -> bool:
    """Unpack an archive to a new directory; return whether the job left one with files."""
    # Where there is space for the files there is also space for their archive.
    with TemporaryDirectory(prefix=".danlu-", dir=root.parent) as directory:
        path = Path(directory, "archive.tar.gz")
        with path.open("wb") as file:
            if not await download(_ARCHIVES[name], file):
                return False
        root.mkdir()
        try:
            await to_thread.run_sync(_unpack_file, path, root, _ARCHIVES[name])
        except OutsideError as error:
            if "none of the expected files" in error.message:
                root.rmdir()
                return False
            error.hint = _HINT
            raise
    return True


def _unpack_file(path: Path, root: Path, name: str) -> None:
    unpack_archive(path, root, ArchiveLayout(), name=name)


async def _download_checkpoint(download: Download, key: str, root: Path) -> None:
    root.joinpath(CHECKPOINTS).mkdir(exist_ok=True)
    if key.endswith("/"):
        return  # consoles create empty objects like this for directories
    try:
        with replace_beneath(root, key) as file:
            await download(key, file)
    except UsageError as error:
        raise OutsideError(f"cannot copy a checkpoint: {error.message}", hint=_HINT) from error
