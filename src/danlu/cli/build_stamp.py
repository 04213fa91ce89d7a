"""Answer a repeated ``danlu build`` from its stamp (:mod:`danlu.cli.command_stamp`)."""

from __future__ import annotations

import sys
import time

from danlu.cli.command_stamp import find_answer

# Not typing.TYPE_CHECKING: see danlu.cli.command_stamp.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence


def answer_repeated_build(arguments: Sequence[str]) -> bool:
    """Print the output of the same ``danlu build`` again, if nothing it depends on has changed.

    Its ``stderr`` has a placeholder ``milliseconds``.
    """
    started = time.monotonic()
    if "build" not in arguments[:2]:
        return False
    answer = find_answer(arguments)
    if answer is None:
        return False
    try:
        milliseconds = max(0, round(1000 * (time.monotonic() - started)))
        stdout, stderr = answer["stdout"], answer["stderr"].format(milliseconds=milliseconds)
        sys.stdout.write(stdout)
        sys.stderr.write(stderr)
        sys.stdout.flush()
        sys.stderr.flush()
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False  # the program reports what is wrong
    return True
