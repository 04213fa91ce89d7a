"""Try namespaces and an overlay in a child, so that the asking process stays as it is."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from danlu.errors import DanluError, MachineError
from danlu.sandbox import overlay, userns
from danlu.util.paths import Paths

__all__ = ["enter_namespaces", "mount_overlay"]


def enter_namespaces(paths: Paths) -> str:
    """Become root of a namespace, and say of how many users; raises :class:`MachineError`."""

    def act() -> str:
        userns.enter(paths)
        return "one user only" if userns.single_id() else "root of its own mounts"

    return _in_child(act)


def mount_overlay(paths: Paths) -> str:
    """Mount an overlay where the store is, or will be; raises :class:`MachineError`."""
    place = next(path for path in (paths.store, *paths.store.parents) if path.is_dir())

    def act() -> str:
        userns.enter(paths)
        with TemporaryDirectory(prefix=".danlu-doctor.", dir=place) as directory:
            if overlay.supported(Path(directory)):
                return "layers are mounted"
        raise MachineError(
            f"the kernel mounts no overlay at {place}: layers are copied, which is slow",
            hint="set DANLU_HOME to a directory on ext4, xfs or btrfs",
        )

    return _in_child(act)


def _in_child(act: Callable[[], str]) -> str:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        _answer(act, write)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        data = file.read()
    os.waitpid(child, 0)
    answer = json.loads(data) if data else {"message": "the child ended early", "hint": ""}
    if "detail" not in answer:
        raise MachineError(answer["message"], hint=answer["hint"])
    return str(answer["detail"])


def _answer(act: Callable[[], str], write: int) -> None:
    answer = {"message": "unknown", "hint": ""}
    try:
        answer = {"detail": act()}
    except DanluError as error:
        answer = {"message": error.message, "hint": error.hint}
    except Exception as error:
        answer = {"message": str(error), "hint": ""}
    finally:
        os.write(write, json.dumps(answer).encode())
        os._exit(0)
