"""Write or check ``constraints*.txt``: every package danlu, its tests and its site need, by hash.

::

    scripts/constraints.py              resolve what pyproject.toml asks for, keeping versions
    scripts/constraints.py --upgrade    the same, newest versions
    scripts/constraints.py --check      only compare, without the network (`make check`)

The files hold no download addresses: pip takes those from the configuration of the machine.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent
#: Each file with the extra of pyproject.toml that it pins in addition to what it must always pin.
FILES = {"constraints.txt": "dev", "constraints-docs.txt": "docs"}
HEADER = "# Made by scripts/constraints.py from pyproject.toml. Hashes only: no addresses.\n"
PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^ ;\\]+)")


def read_requirements(extra: str) -> list[Requirement]:
    """Return the requirements of an extra; those of ``dev`` include running and building danlu."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines: list[str] = list(project["project"]["optional-dependencies"][extra])
    if extra == "dev":
        lines += [*project["project"]["dependencies"], *project["build-system"]["requires"]]
    return [Requirement(line) for line in lines]


def pip_as_uv() -> dict[str, str]:
    """Return pip's main index on this machine as variables for uv, which does not read pip's.

    Extra indexes and directories of wheels are left out, because they are specific to this machine.
    """
    shown = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    variables: dict[str, str] = {}
    names = {"index-url": "UV_DEFAULT_INDEX", "cert": "SSL_CERT_FILE"}
    for line in shown.stdout.splitlines():
        key, _, value = line.partition("=")
        name = names.get(key.rpartition(".")[2])
        if name:
            variables[name] = value.strip("'\"")
    return variables


def compile_pins(file: Path, requirements: Iterable[Requirement], *, upgrade: bool) -> str:
    """Resolve the requirements with uv for every supported Python, and return the file's text."""
    command = [sys.executable, "-m", "uv", "pip", "compile", "--quiet", "--universal"]
    command += ["--python-version", "3.11", "--generate-hashes", "--no-annotate", "--no-header"]
    command += ["--no-emit-index-url", "--no-emit-find-links", "--output-file", str(file)]
    command += ["--upgrade"] if upgrade else []
    lines = "\n".join(map(str, requirements))
    environment: Mapping[str, str] = {**os.environ, **pip_as_uv()}
    subprocess.run([*command, "-"], input=lines, text=True, check=True, env=environment, cwd=ROOT)
    return file.read_text()


def parse_pins(text: str) -> dict[str, tuple[str, int]]:
    """Return the version and the number of hashes of each pin, by name."""
    found: dict[str, tuple[str, int]] = {}
    name = ""
    for line in text.splitlines():
        if match := PIN.match(line):
            name = canonicalize_name(match["name"])
            found[name] = (match["version"], 0)
        elif line.strip().startswith("--hash=sha256:") and name:
            version, count = found[name]
            found[name] = (version, count + 1)
    return found


def findings(text: str, requirements: Iterable[Requirement]) -> list[str]:
    """Return what is wrong with ``text`` as the pins of ``requirements``."""
    pins = parse_pins(text)
    wrong = [f"{name}: no hash" for name, (_, count) in pins.items() if not count]
    if "://" in text or "--index" in text or "--find-links" in text:
        wrong.append("it contains a URL or an index option")
    for requirement in requirements:
        pin = pins.get(canonicalize_name(requirement.name))
        if pin is None:
            wrong.append(f"{requirement.name}: not pinned")
        elif pin[0] not in requirement.specifier:
            wrong.append(f"{requirement.name}: {pin[0]} is not {requirement.specifier}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--upgrade", action="store_true")
    options = parser.parse_args()
    wrong = []
    for name, extra in FILES.items():
        file, requirements = ROOT / name, read_requirements(extra)
        if not options.check:
            text = compile_pins(file, requirements, upgrade=options.upgrade)
            file.write_text(HEADER + text.removeprefix(HEADER))
        text = file.read_text() if file.exists() else ""
        wrong += [f"{name}: {line}" for line in findings(text, requirements)]
    for line in wrong:
        print(line, file=sys.stderr)
    if wrong:
        print("hint: .venv/bin/python scripts/constraints.py", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
