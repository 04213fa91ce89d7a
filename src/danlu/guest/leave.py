"""End a program whose libraries may have left threads that Python does not know.

Gloo's threads of ``DistributedDataParallel`` outlive ``destroy_process_group()``. If one of them
wants the interpreter while that is being taken down, the process aborts after its work was done
("terminate called without an active exception").
"""

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn

__all__ = ["leave"]


def leave(code: int) -> "NoReturn":
    """End this process as Python does, but for taking the interpreter down.

    Threads that are no daemons are waited for, and what ``atexit`` knows is called.
    """
    try:
        # It waits for them, and ends those of concurrent.futures.
        getattr(threading, "_shutdown", lambda: None)()
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            # Nobody reads any more, or the code closed it.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code & 0xFF)
