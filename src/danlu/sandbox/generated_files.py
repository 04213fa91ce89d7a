"""Remove keys, databases and formats that maintainer scripts of packages generate.

They differ from build to build, and a private key in an image is not secret. They are removed from
a system package's layer; an environment that needs one creates it at start with the package's own
tool (docs/architecture/decisions.md#identity-at-start-not-at-build). The table has one entry per
mechanism; private keys in PEM form are found wherever they are.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

from danlu.sandbox.finalize_upper import walk_entries
from danlu.util.files import remove_tree

#: Larger files are not keys.
_MAX_KEY_SIZE = 1 << 20
_PEM_KEY_MARKER = b"PRIVATE KEY-----"
_DPKG_LISTS = "var/lib/dpkg/info/*.list"


class GeneratedFiles(NamedTuple):
    """One mechanism: ``paths`` are patterns, ``command`` generates the files again."""

    what: str
    paths: tuple[str, ...]
    command: str


KNOWN_GENERATED_FILES = (
    GeneratedFiles("bind9's key", ("etc/bind/rndc.key",), "rndc-confgen -a"),
    GeneratedFiles("munge's key", ("etc/munge/munge.key",), "mungekey --create"),
    GeneratedFiles(
        "MariaDB's or MySQL's database",
        ("var/lib/mysql/*",),
        "mariadb-install-db --user=mysql",
    ),
    GeneratedFiles(
        "PostgreSQL's cluster",
        ("var/lib/postgresql/*/main", "etc/postgresql/*/main"),
        "pg_createcluster VERSION main",
    ),
    GeneratedFiles("Postfix's database of aliases", ("etc/aliases.db",), "newaliases"),
    GeneratedFiles("RabbitMQ's cookie", ("var/lib/rabbitmq/.erlang.cookie",), "rabbitmq-server"),
    GeneratedFiles(
        "slapd's configuration and database",
        ("etc/ldap/slapd.d/*", "var/lib/ldap/*"),
        "dpkg-reconfigure -f noninteractive slapd",
    ),
    GeneratedFiles(
        "ssh's host keys", ("etc/ssh/ssh_host_*_key", "etc/ssh/ssh_host_*_key.pub"), "ssh-keygen -A"
    ),
    GeneratedFiles(
        "ssl-cert's certificate and key",
        ("etc/ssl/private/ssl-cert-snakeoil.key", "etc/ssl/certs/ssl-cert-snakeoil.pem"),
        "make-ssl-cert generate-default-snakeoil",
    ),
    # Programs whose format is missing create it (mktexfmt(1)). A format contains the time unless
    # FORCE_SOURCE_DATE is set, which the program `tex` ignores. LuaTeX writes its exceptions of
    # hyphenation in the order of a Lua table, which is random.
    GeneratedFiles(
        "the formats of TeX and LuaTeX",
        ("var/lib/texmf/web2c/tex/*.fmt", "var/lib/texmf/web2c/lua*tex/*.fmt"),
        "fmtutil-sys --missing",
    ),
)


def remove_generated_files(upper: Path) -> list[str]:
    """Remove generated files from ``upper``, the changes made by installing packages.

    Returns a message for each mechanism, and for each private key that no package contains. No link
    in the tree is followed, and nothing may be running in it any more.
    """
    root = str(upper)
    entries = {entry.path[len(root) + 1 :]: entry for entry in walk_entries(root)}
    lines = [
        f"removed from the image: {generated.what}, which each installation generates; to create it"
        f" when the environment starts, run `{generated.command}`"
        for generated in KNOWN_GENERATED_FILES
        if _remove_matching(root, entries, generated.paths)
    ]
    owned = _package_files(entries)
    for name, entry in sorted(entries.items()):
        if name not in owned and _is_private_key(entry):
            os.unlink(entry.path)
            lines.append(f"removed from the image: the generated private key /{name}")
    return lines


def _remove_matching(
    root: str, entries: dict[str, os.DirEntry[str]], patterns: Sequence[str]
) -> bool:
    """Remove matching entries and links to them; return whether any matched."""
    names = {
        name for name in entries if any(_matches_pattern(name, pattern) for pattern in patterns)
    }
    for name in names:
        remove_tree(Path(entries[name].path))
    for name in names | _remove_links_to(names, entries):
        for gone in [path for path in entries if path == name or path.startswith(f"{name}/")]:
            del entries[gone]
    return bool(names)


def _remove_links_to(names: set[str], entries: dict[str, os.DirEntry[str]]) -> set[str]:
    """Remove links next to what was removed, such as the hash link of a certificate."""
    removed = set()
    for name, entry in entries.items():
        if entry.is_symlink():
            target = os.path.join(os.path.dirname(name), os.readlink(entry.path))
            if os.path.normpath(target) in names:
                os.unlink(entry.path)
                removed.add(name)
    return removed


def _matches_pattern(name: str, pattern: str) -> bool:
    """Return whether each component of a path matches the corresponding one of a pattern."""
    if not name.startswith(pattern.partition("*")[0]):
        return False
    parts, patterns = name.split("/"), pattern.split("/")
    return len(parts) == len(patterns) and all(map(fnmatchcase, parts, patterns))


def _package_files(entries: dict[str, os.DirEntry[str]]) -> set[str]:
    """Return the files of the installed packages, with the aliases of merged directories (/usr)."""
    owned: set[str] = set()
    for name, entry in entries.items():
        if _matches_pattern(name, _DPKG_LISTS) and entry.is_file(follow_symlinks=False):
            for line in Path(entry.path).read_text(errors="surrogateescape").splitlines():
                path = line.lstrip("/")
                owned |= {path, f"usr/{path}"}
    return owned


def _is_private_key(entry: os.DirEntry[str]) -> bool:
    status = entry.stat(follow_symlinks=False)
    if not stat.S_ISREG(status.st_mode) or not 0 < status.st_size <= _MAX_KEY_SIZE:
        return False
    return _PEM_KEY_MARKER in Path(entry.path).read_bytes()
