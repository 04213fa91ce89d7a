"""Write or check the generated pages: ``scripts/docs.py [--check]``.

Each generator is a module that writes its pages at the root of the repository, and with
``--check`` only says what is not current.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATORS = (
    "danlu.cli.reference",
    "danlu.jobs.reference",
    "danlu.lang.reference",
    "danlu.notebook.reference",
)


def main() -> int:
    failed = [
        module
        for module in GENERATORS
        if subprocess.run(
            [sys.executable, "-m", module, *sys.argv[1:]], cwd=ROOT, check=False
        ).returncode
    ]
    if failed:
        print("hint: make docs", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
