"""An included repository: what its files define, and what they may load and include."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Mapping

import msgspec

from danlu.lang.source_files import normalize_newlines
from danlu.util.urls import mask_credentials

_TOP_LEVEL = re.compile(r"^(?:def[ \t]+)?([A-Za-z]\w*)[ \t]*(?:\(|=(?!=)|:[^=\n]*=)", re.MULTILINE)


class IncludedRepository(msgspec.Struct, frozen=True):
    """A repository at a commit, with its ``*.envd`` files by path."""

    url: str
    ref: str
    commit: str
    files: Mapping[str, str]


def list_public_names(text: str) -> list[str]:
    """Return the names that a file's top level may bind, in order, each once."""
    try:
        tree = ast.parse(normalize_newlines(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return list(dict.fromkeys(_TOP_LEVEL.findall(normalize_newlines(text))))
    names: dict[str, None] = {}
    pending: list[ast.AST] = list(reversed(tree.body))
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef):
            names[node.name] = None
        elif isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                names[node.id] = None
        elif not isinstance(node, (ast.Lambda, ast.ListComp, ast.DictComp)):
            pending += reversed(list(ast.iter_child_nodes(node)))
    return [name for name in names if not name.startswith("_")]


def resolve_inner_path(current: str, name: str) -> str | None:
    """Return the path of ``name`` as loaded by a repository's file; None if it leads outside."""
    if posixpath.isabs(name) or "\\" in name or "\0" in name or not name:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(current), name))
    return None if path == ".." or path.startswith("../") else path


_REMOTE = re.compile(r"(https|ssh|git)://|[\w.-]+@[\w.-]+:")


def check_include_address(url: str, ref: str, *, from_repository: bool) -> tuple[str, str] | None:
    """Return a message and hint if an ``include()`` is refused, else None."""
    # "ext::" and its like run programs; a leading "-" would be an option of git.
    if not url or url.startswith("-") or "::" in url or re.search(r"[\s\0]", url):
        return (
            f"include(): '{mask_credentials(url)}' is not a repository address",
            "use an address such as https://host/team/name",
        )
    if ref.startswith("-") or re.search(r"[\s\0]", ref):
        return f"include(): '{ref}' is not a branch, tag or commit", ""
    if from_repository and not _REMOTE.match(url):
        return (
            f"include(): an included repository cannot include '{mask_credentials(url)}'",
            "only https://, ssh:// and git:// addresses are allowed there",
        )
    return None
