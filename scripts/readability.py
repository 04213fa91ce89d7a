"""Measure how readable a tree of Python is, and compare it with the committed figures.

::

    scripts/readability.py            print the figures
    scripts/readability.py --list     also name what they count
    scripts/readability.py --check    fail if a figure is worse than readability.toml says
    scripts/readability.py --update   write readability.toml

The figures are those in which the first version of this code base differed most from eight
libraries that read well (kopf, httpx, anyio, lightkube, kr8s, installer, jupyter_client,
pip-tools). They don't prove that code is readable; they catch a relapse.
"""

from __future__ import annotations

import argparse
import ast
import collections
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src/danlu"
COMMITTED = Path(__file__).with_suffix(".toml")

PHRASES = re.compile(
    r"\b(told|tells? of|whoever|whatever is|(?:is|are|was|were) to be"
    r"|is no (?!longer|need|limit|match|way|such|\w+ yet)\w+|made anew|beside\b|so many|lies in"
    r"|stands (?:in|for|still)|of its own|as it is\b|what there is|what goes along|travels?)\b",
    re.IGNORECASE,
)
PARTICIPLE = re.compile(
    r"^_?(?:\w+(?:ed|en)|told|said|made|left|begun|found|given|kept|held|built|sent|shown|taken"
    r"|known|gone|meant)$"
)
NOT_PARTICIPLES = {
    *("listen", "open", "token", "seen", "even", "ten", "red", "bed", "seed", "feed", "embed"),
    *("need", "exceed", "speed", "is_open", "wooden", "golden", "hidden"),
}

#: Callbacks that asyncio and asyncssh call by these names.
CALLBACKS = {
    *("data_received", "eof_received", "signal_received", "break_received", "session_started"),
    *("pty_requested", "shell_requested", "exec_requested", "subsystem_requested"),
    *("terminal_size_changed", "auth_completed", "session_requested", "connection_requested"),
    *("unix_connection_requested", "server_requested", "unix_server_requested", "wait_closed"),
}


@dataclass
class ReadabilityFindings:
    """Findings in a tree; lists hold ``NAME PATH:LINE``."""

    lines: int = 0
    modules: int = 0
    functions: int = 0
    private_functions: int = 0
    classes: dict[str, list[str]] = field(default_factory=lambda: collections.defaultdict(list))
    one_word_functions: list[str] = field(default_factory=list)
    participles: list[str] = field(default_factory=list)
    vague_loops: list[str] = field(default_factory=list)
    phrases: list[str] = field(default_factory=list)
    local_imports: list[str] = field(default_factory=list)

    @property
    def one_word_classes(self) -> list[str]:
        return [name for name in self.classes if len(_split_words(name)) <= 1]

    @property
    def duplicate_classes(self) -> list[str]:
        return [
            f"{name} {' '.join(places)}"
            for name, places in sorted(self.classes.items())
            if len(places) > 1 and not name.startswith("_")
        ]

    def figures(self) -> dict[str, float]:
        """Return the figures that may not get worse."""
        return {
            "one_word_private_functions_percent": _to_percent(
                len(self.one_word_functions), self.private_functions
            ),
            "one_word_classes_percent": _to_percent(len(self.one_word_classes), len(self.classes)),
            "participle_functions_percent": _to_percent(len(self.participles), self.functions),
            "loops_over_one": len(self.vague_loops),
            "duplicate_public_classes": len(self.duplicate_classes),
            "stilted_phrases": len(self.phrases),
            "local_imports_per_100_functions": _to_percent(len(self.local_imports), self.functions),
        }


def _split_words(name: str) -> list[str]:
    return re.findall(r"[A-Z][a-z0-9]*", name.strip("_"))


def _to_percent(part: int, whole: int) -> float:
    return round(100 * part / max(1, whole), 1)


def measure(root: Path) -> ReadabilityFindings:
    """Read every module below ``root``."""
    findings = ReadabilityFindings()
    for path in sorted(root.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        findings.lines += text.count("\n")
        findings.modules += path.name != "__init__.py"
        tree = ast.parse(text)
        place = str(path.relative_to(root))
        for node in ast.walk(tree):
            _measure_node(node, place, findings)
        for line, string in _find_prose(tree, text):
            for match in PHRASES.finditer(string):
                if not match[0].endswith("None"):
                    findings.phrases.append(f"{match[0].lower()} {place}:{line}")
    return findings


def _measure_node(node: ast.AST, place: str, findings: ReadabilityFindings) -> None:
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            if name.startswith("__"):
                return
            where = f"{name} {place}:{node.lineno}"
            findings.functions += 1
            if name.startswith("_"):
                findings.private_functions += 1
                if "_" not in name.strip("_"):
                    findings.one_word_functions.append(where)
            if PARTICIPLE.match(name) and name.strip("_") not in NOT_PARTICIPLES | CALLBACKS:
                findings.participles.append(where)
            findings.local_imports += [
                f"{name} {place}:{inner.lineno}"
                for inner in ast.walk(node)
                if isinstance(inner, (ast.Import, ast.ImportFrom))
            ]
        case ast.ClassDef(name=name):
            findings.classes[name].append(f"{place}:{node.lineno}")
        case (
            ast.For(target=ast.Name(id="one") as target)
            | ast.AsyncFor(target=ast.Name(id="one") as target)
            | ast.comprehension(target=ast.Name(id="one") as target)
        ):
            findings.vague_loops.append(f"one {place}:{target.lineno}")


def _find_prose(tree: ast.Module, text: str) -> Iterator[tuple[int, str]]:
    """Yield docstrings, messages and comments with their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("#"):
            yield number, line


def compare(figures: dict[str, float], committed: dict[str, float]) -> list[str]:
    """Name each figure that is worse than the committed one."""
    return [
        f"{name}: {figures[name]:g}, committed {limit:g}"
        for name, limit in committed.items()
        if figures[name] > limit
    ]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--update", action="store_true")
    options = parser.parse_args()
    findings = measure(SOURCE)
    figures = findings.figures()
    if options.update:
        lines = ["# Made by scripts/readability.py --update; `make check` fails above these.\n"]
        COMMITTED.write_text("".join([*lines, *(f"{k} = {v:g}\n" for k, v in figures.items())]))
    if options.check:
        worse = compare(figures, tomllib.loads(COMMITTED.read_text()))
        for line in worse:
            print(f"readability: {line}", file=sys.stderr)
        if worse:
            print("hint: .venv/bin/python scripts/readability.py --list", file=sys.stderr)
        return 1 if worse else 0
    print(f"lines {findings.lines}  modules {findings.modules}  functions {findings.functions}")
    for name, value in figures.items():
        print(f"{name:36} {value:g}")
    if options.list:
        for title in (
            "one_word_functions",
            "one_word_classes",
            "participles",
            "vague_loops",
            "duplicate_classes",
            "phrases",
            "local_imports",
        ):
            for item in getattr(findings, title):
                print(f"{title}\t{item}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
