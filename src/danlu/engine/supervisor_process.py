"""The process of an environment's supervisor (:mod:`danlu.engine.environment_supervisor`).

It starts what takes as long as loading the supervisor, and then loads it.
"""

from __future__ import annotations

import sys

from danlu.engine.attached_process import start_recorded


def main(directory: str, ready: int, lock: int) -> None:
    """Supervise the environment in ``directory``; report on the descriptor ``ready``.

    The descriptor ``lock`` is that of the lock that says that the environment runs.
    """
    restarted = start_recorded(directory)
    from danlu.engine import environment_supervisor

    environment_supervisor.main(directory, ready, lock, restarted)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
