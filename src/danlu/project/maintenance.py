"""What happens after a build while nobody waits: fsync, bytecode, the store's size limit.

It runs in a separate process at the lowest priority, so that a build returns immediately.
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
    from danlu.engine.settings import Settings
    from danlu.store import Store

# The process imports everything else after it has lowered its priority.

#: Contains the digest of the image that was built last.
_NEXT_FILE = "upkeep.next"

_DELAY_SECONDS = 5.0

#: The argument that makes the process remove leftovers and do nothing else.
_SWEEP_ARGUMENT = "sweep"


def start_maintenance(digest: str, settings: Settings) -> None:
    """Start maintenance after the image ``digest`` was built, unless it is configured off."""
    if settings.config.upkeep == "off":
        return
    write_atomic(settings.paths.data / _NEXT_FILE, digest.encode(), sync=False)
    _start_process(settings)


def start_sweep(store: Store, settings: Settings) -> None:
    """Start to remove what killed builds left behind: each may have left a gigabyte.

    A separate process, so that the first build after a kill is not slowed down.
    """
    from danlu.sources import downloads

    if settings.config.upkeep != "off" and (
        store.has_leftovers() or downloads.has_leftovers(settings.paths.cache)
    ):
        _start_process(settings, _SWEEP_ARGUMENT)


def _start_process(settings: Settings, *arguments: str) -> None:
    environ = dict(os.environ)
    if environ.get("DANLU_HOME"):
        # A relative path would mean another directory, because the child works in `/`.
        environ["DANLU_HOME"] = str(settings.paths.data)
    subprocess.Popen(
        [sys.executable, "-m", "danlu.project.maintenance", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        cwd="/",
        env=environ,
    )


def main(*, delay: float = _DELAY_SECONDS) -> int:
    """Run maintenance for the newest image, at idle priority and once at a time per store.

    It starts ``delay`` seconds after the last build. Idle priority yields to another build, but
    the two hyperthreads of a core still share its resources.
    """
    os.nice(19)
    if hasattr(os, "SCHED_IDLE"):
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    from danlu.engine.settings import load_settings

    settings = load_settings()
    if _SWEEP_ARGUMENT in sys.argv[1:]:
        sweep_store(settings)
        return 0
    with try_file_lock(settings.paths.data / "upkeep.lock") as acquired:
        if not acquired:
            return 0  # the process that holds it also handles images built later
        try:
            while digest := _take_digest(settings, delay):
                maintain_store(digest, settings)
        except DanluError:
            return 1
    return 0


def _take_digest(settings: Settings, delay: float) -> str:
    """Take the image that was built last, once that is ``delay`` seconds ago; ``""`` if none."""
    file = settings.paths.data / _NEXT_FILE
    try:
        while 0 <= (age := time.time() - file.stat().st_mtime) < delay:
            time.sleep(delay - age)
        digest = file.read_text()
        file.unlink()
    except FileNotFoundError:
        return ""
    return digest


def maintain_store(digest: str, settings: Settings) -> None:
    """Sync the store, compile the image's bytecode, and enforce the store's size limit."""
    import anyio

    from danlu.image.manage import prune_images
    from danlu.project.bytecode import compile_image
    from danlu.sandbox import userns
    from danlu.store import Store
    from danlu.util.human import parse_size

    userns.enter(settings.paths)
    with Store.open(settings.paths.store) as store:
        store.sync()
        with store.lease():
            image = store.image(digest)
            if image is not None:
                anyio.run(partial(compile_image, store, image, settings))
        if settings.config.store_limit:
            prune_images(store, settings.paths, parse_size(settings.config.store_limit))


def sweep_store(settings: Settings) -> None:
    """Remove what killed builds left in the store and in the cache of downloads."""
    from danlu.sandbox import userns
    from danlu.sources import downloads
    from danlu.store import Store

    userns.enter(settings.paths)
    with Store.open(settings.paths.store) as store:
        store.sweep()
    downloads.sweep(settings.paths.cache)


if __name__ == "__main__":
    sys.exit(main())
