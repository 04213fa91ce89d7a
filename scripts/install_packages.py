"""Install the packages of ``constraints.txt`` for the Python that runs this, with uv.

``install_packages.py FILE PREFIX`` installs those of FILE in the virtual environment PREFIX.

uv needs seconds where pip needs a minute, and reads no configuration of pip, so it is started as
danlu starts it: with the indexes, certificates and restrictions that pip has on this machine. That
needs the packages in ``BOOTSTRAP``, which pip installs first. Exits with uv's code, and with its
messages if it failed.

``install_packages.py --bootstrap`` prints the lines of ``constraints.txt`` for these packages.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
#: uv, and what the modules of danlu that start it import.
BOOTSTRAP = ("anyio", "idna", "msgspec", "typing-extensions", "uv")


def bootstrap_lines() -> str:
    """Return the requirements of ``BOOTSTRAP`` with their hashes."""
    entries = re.split(r"^(?=\S)", CONSTRAINTS.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return "".join(entry for entry in entries if entry.partition("==")[0] in BOOTSTRAP)


def install(file: Path = CONSTRAINTS, prefix: Path = Path(sys.prefix)) -> int:
    """Run uv; return its exit code."""
    sys.path.insert(0, str(ROOT / "src"))
    import anyio

    from danlu.sources.pypi.uv import Uv

    with tempfile.TemporaryDirectory(dir=sys.prefix) as cache:
        command = Uv(Path(cache), ROOT).prepare(
            ("pip", "install"),
            ["--no-deps", "--require-hashes", "--prefix", str(prefix), "-r", str(file)],
        )
        code, _, messages = anyio.run(command.run)
    if code:
        print(messages, file=sys.stderr)
    return code


if __name__ == "__main__":
    if sys.argv[1:] == ["--bootstrap"]:
        print(bootstrap_lines())
    else:
        sys.exit(install(*map(Path, sys.argv[1:])))
