"""Write or check the generated pages: ``scripts/docs.py [--check]``.

Each generator is a module that writes its pages below the root of the repository; with ``--check``
it only reports which ones are out of date.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATORS = (
    "scripts.reference.cli",
    "scripts.reference.jobs",
    "scripts.reference.machine_settings",
    "scripts.reference.build_language",
    "scripts.reference.notebook",
    "scripts.reference.dependencies",
    "scripts.reference.node_templates",
)


def main() -> int:
    failed = [
        generator
        for generator in GENERATORS
        if subprocess.run(
            [sys.executable, "-m", generator, *sys.argv[1:]], cwd=ROOT, check=False
        ).returncode
    ]
    if failed:
        print("hint: make docs", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
