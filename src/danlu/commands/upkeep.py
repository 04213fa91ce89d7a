"""What is done after a build while nobody waits: syncing, byte code, keeping the limit.

It runs as a process of its own at the lowest priority, so that a build's end is its end.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from functools import partial
from typing import TYPE_CHECKING

from danlu.errors import DanluError
from danlu.util.files import write_atomic
from danlu.util.locks import try_file_lock

if TYPE_CHECKING:
    from danlu.commands.settings import Settings

__all__ = ["main", "start", "work"]

_NEXT = "upkeep.next"
_PATIENCE = 5.0


def start(digest: str, settings: Settings) -> None:
    """Begin the upkeep after the image ``digest`` was built, unless the user wants none."""
    if settings.config.upkeep == "off":
        return
    write_atomic(settings.paths.data / _NEXT, digest.encode(), sync=False)
    # What it prints goes nowhere: the terminal is the user's again.
    subprocess.Popen(
        [sys.executable, "-m", "danlu.commands.upkeep"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env={**os.environ, **_home(settings)},
    )


def _home(settings: Settings) -> dict[str, str]:
    """A relative ``DANLU_HOME`` means another directory where the child works."""
    return {"DANLU_HOME": str(settings.paths.data)} if os.environ.get("DANLU_HOME") else {}


def work(digest: str, settings: Settings) -> None:
    """Sync the store, make the image's byte code, and keep store and downloads within the limit."""
    import anyio

    from danlu.commands.bytecode import compile_image
    from danlu.commands.prune import prune
    from danlu.sandbox import userns
    from danlu.store import Store
    from danlu.util.human import parse_size

    userns.enter(settings.paths)
    with Store.open(settings.paths.store) as store:
        store.settle()
        with store.lease():
            image = store.image(digest)
            if image is not None:
                anyio.run(partial(compile_image, store, image, settings))
        if settings.config.store_limit:
            prune(store, settings.paths, parse_size(settings.config.store_limit))


def main(*, patience: float = _PATIENCE) -> int:
    """The process: at idle priority, only one of it at a time for a store, for the newest image.

    It begins ``patience`` seconds after the last build: who builds again at once has the machine
    to themselves, for idle priority gives way but not the other half of a core.
    """
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    from danlu.commands.settings import load_settings

    settings = load_settings()
    with try_file_lock(settings.paths.data / "upkeep.lock") as free:
        if not free:
            return 0  # its holder takes what came next, too
        try:
            while digest := _next(settings, patience):
                work(digest, settings)
        except DanluError:
            return 1
    return 0


def _next(settings: Settings, patience: float) -> str:
    """The image that was built last, given once when that is ``patience`` ago; or nothing."""
    note = settings.paths.data / _NEXT
    try:
        while 0 <= (age := time.time() - note.stat().st_mtime) < patience:
            time.sleep(patience - age)
        digest = note.read_text()
        note.unlink()
    except FileNotFoundError:
        return ""
    return digest


if __name__ == "__main__":
    sys.exit(main())
