"""An included repository: what its files define, what they may load and include."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping

import msgspec

from danlu.lang.sources import clean

__all__ = ["Repository", "inner_path", "public_names", "refused_address"]

_TOP_LEVEL = re.compile(r"^(?:def[ \t]+)?([A-Za-z]\w*)[ \t]*(?:\(|=(?!=)|:[^=\n]*=)", re.MULTILINE)


class Repository(msgspec.Struct, frozen=True):
    """A repository at a commit, with its ``*.envd`` by path."""

    url: str
    ref: str
    commit: str
    files: Mapping[str, str]


def public_names(text: str) -> list[str]:
    """Return the names that a file's top level may bind, in order, each once."""
    import ast

    try:
        tree = ast.parse(clean(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return list(dict.fromkeys(_TOP_LEVEL.findall(clean(text))))
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


def inner_path(current: str, name: str) -> str | None:
    """Return the path that a repository's file means by ``name``; None when it leads outside."""
    if posixpath.isabs(name) or "\\" in name or "\0" in name or not name:
        return None
    path = posixpath.normpath(posixpath.join(posixpath.dirname(current), name))
    return None if path == ".." or path.startswith("../") else path


_REMOTE = re.compile(r"(https|ssh|git)://|[\w.-]+@[\w.-]+:")


def refused_address(url: str, ref: str, *, stranger: bool) -> tuple[str, str] | None:
    """Return why (and a hint) an address or a ref of ``include()`` is not asked for."""
    # "ext::" and its like run programs; a leading "-" would be an option of git.
    if not url or url.startswith("-") or "::" in url or re.search(r"[\s\0]", url):
        return f"include(): '{url}' is no repository's address", "such as https://host/team/name"
    if ref.startswith("-") or re.search(r"[\s\0]", ref):
        return f"include(): '{ref}' is no branch, tag or commit", ""
    if stranger and not _REMOTE.match(url):
        return (
            f"include(): an included repository may not include '{url}'",
            "it can include https://, ssh:// and git:// addresses only",
        )
    return None
