"""Check that no plug-in is recognised by its name outside its own modules and its registry.

What a framework or an engine can do is a property of it, so code elsewhere asks for the property. A
name that is compared, or listed to be compared (``("PyTorchJob", "JAXJob")``), is a file more to
edit whenever a plug-in is added.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from danlu.engine.registry import BUILT_IN_NAMES
from danlu.training.registry import BUILT_IN_FRAMEWORKS

SOURCE = Path(__file__).resolve().parent.parent / "src/danlu"
COLLECTIONS = (ast.Tuple, ast.List, ast.Set, ast.Dict)
COMPARISONS = (ast.Compare, ast.MatchValue)


@dataclass(frozen=True)
class NameRule:
    """Names of plug-ins, and the paths below ``src/danlu`` (glob patterns) that may use them.

    ``ignored`` are paths in which the same words mean something else. With ``always`` a name is
    refused wherever it is written, also as the value of a constant.
    """

    what: str
    names: frozenset[str]
    allowed: tuple[str, ...]
    ignored: tuple[str, ...] = ()
    always: bool = False


RULES = (
    NameRule(
        "kind of a framework",
        frozenset(framework.kind for framework in BUILT_IN_FRAMEWORKS),
        ("training/frameworks/**/*.py", "training/registry.py"),
        always=True,
    ),
    NameRule(
        "name of a framework",
        frozenset(
            name
            for framework in BUILT_IN_FRAMEWORKS
            for name in (framework.name, framework.plural, *framework.aliases)
        ),
        ("training/frameworks/**/*.py", "training/registry.py"),
        # The packages of these names: what they contain, need and are called elsewhere.
        (
            "environment/*.py",
            "sources/**/*.py",
            "serving/**/*.py",
            "replica_runtime/*.py",
            "api/packing.py",
            "**/download_sizes.py",
            "**/name_mappings.py",
        ),
    ),
    NameRule(
        "name of an engine",
        frozenset((*BUILT_IN_NAMES, "DEFAULT_ENGINE")),
        ("engine/registry.py", "engine/docker/*.py"),
        # Builders, formats of archives, and a table of the configuration have some of these names.
        ("project/build.py", "project/build_image.py", "image/export.py", "util/config.py"),
    ),
)


def find_names(source: Path, rules: tuple[NameRule, ...] = RULES) -> Iterator[str]:
    """Yield ``PATH:LINE: NAME is the …`` for each name that is used where it may not be."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(source.rglob("*.py"))}
    for rule in rules:
        written = re.compile("|".join(map(re.escape, rule.names)))
        excluded = {path for glob in (*rule.allowed, *rule.ignored) for path in source.glob(glob)}
        for path, text in texts.items():
            if path in excluded or not written.search(text):
                continue
            tree = ast.parse(text)
            for word, line in list_texts(tree) if rule.always else list_compared_texts(tree):
                if word in rule.names:
                    yield f"{path.relative_to(source)}:{line}: {word} is the {rule.what}"


def list_texts(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield all texts, and their lines."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.value, node.lineno


def list_compared_texts(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Yield the texts that are compared or are members of a collection, and their lines.

    Also the names of what is compared, which may be constants for such texts.
    """
    for node in ast.walk(tree):
        if isinstance(node, (*COMPARISONS, *COLLECTIONS)):
            for child in ast.iter_child_nodes(node):
                if isinstance(child, ast.Constant) and isinstance(child.value, str):
                    yield child.value, child.lineno
                elif isinstance(child, ast.Name) and isinstance(node, ast.Compare):
                    yield child.id, child.lineno


if __name__ == "__main__":
    if found := list(find_names(SOURCE)):
        hint = "ask for a property of the plug-in instead; add one if there is none"
        sys.exit("\n".join((*found, f"names: {hint}")))
