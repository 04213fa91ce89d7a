"""Exit a process safely although libraries may have left threads that Python does not know.

Gloo's threads of ``DistributedDataParallel`` outlive ``destroy_process_group()``. If one of them
calls into the interpreter during finalization, the process aborts although its work is done
("terminate called without an active exception").
"""

import atexit
import contextlib
import os
import sys
import threading
from typing import NoReturn


def exit_process(code: int) -> "NoReturn":
    """Exit like Python does, but without finalizing the interpreter.

    Wait for non-daemon threads, run atexit functions and flush the standard streams.
    """
    try:
        # Private, but the only way to join the threads and to end those of concurrent.futures.
        getattr(threading, "_shutdown", lambda: None)()
        atexit._run_exitfuncs()
    finally:
        for stream in (sys.stdout, sys.stderr):
            # The pipe may be broken, or the user's code may have closed the stream.
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code & 0xFF)
