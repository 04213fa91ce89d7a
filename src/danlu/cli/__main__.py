"""The entry point; what it runs is imported late, so that Ctrl-C is clean from the first moment."""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run danlu with ``arguments`` (default: this process's) and give its exit code."""
    try:
        from danlu.cli import program
    except KeyboardInterrupt:
        return 130
    return program.run(sys.argv[1:] if arguments is None else list(arguments))


if __name__ == "__main__":
    sys.exit(main())
