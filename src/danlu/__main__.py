"""``python -m danlu``."""

from danlu.cli.__main__ import main

if __name__ == "__main__":
    raise SystemExit(main())
