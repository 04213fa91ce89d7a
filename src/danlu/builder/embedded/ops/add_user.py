"""Add a user to the account files of the stack below, as useradd(8) would, without running it."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from danlu.builder.embedded.context import OpContext
from danlu.builder.embedded.staged_tree import commit_tree, copy_parents, write_over
from danlu.graph.ops import AddUser
from danlu.oci.tar import NormalizeOptions
from danlu.sandbox.layer_view import LayerView
from danlu.store import Layer

#: Shells that the image may lack are replaced by this one.
_FALLBACK_SHELL = "/bin/sh"

#: Files of /etc/skel that are copied to the home directory at most.
_MAX_SKELETON_FILES = 50


async def execute(op: AddUser, context: OpContext) -> list[Layer]:
    """Return one layer with the changed account files and the home directory."""
    with context.store.staging() as staged:
        view = LayerView(tuple(layer.tree for layer in context.below))
        await context.run_sync(write_account, op, view, staged)
        made_by = f"danlu: add user {op.name}"
        return await commit_tree(context, staged, NormalizeOptions(mtime=op.epoch), made_by)


def write_account(op: AddUser, view: LayerView, staged: Path) -> None:
    """Write the changed account files and the home directory into the tree ``staged``."""
    shell = op.shell if view.entry(view.resolve(op.shell)) else _FALLBACK_SHELL
    account = f"{op.name}:x:{op.uid}:{op.gid}::{op.home}:{shell}"
    # Without a password (shadow(5), "*"); a lock ("!") would keep sshd from accepting keys.
    files: dict[str, tuple[int, Callable[[list[str]], list[str]]]] = {
        "/etc/passwd": (0o644, lambda lines: _insert_entry(lines, account)),
        "/etc/group": (0o644, lambda lines: _update_groups(lines, op)),
    }
    if view.read("/etc/shadow") is not None:
        secret = f"{op.name}:*::0:99999:7:::"
        files["/etc/shadow"] = (0o640, lambda lines: _insert_entry(lines, secret))
    if view.read("/etc/gshadow") is not None:
        files["/etc/gshadow"] = (0o640, lambda lines: _update_groups(lines, op, shadow=True))
    for path, (mode, change) in files.items():
        lines = (view.read(path) or b"").decode(errors="surrogateescape").splitlines()
        write_over(view, staged, path, "\n".join(change(lines)) + "\n", mode)
    if op.sudo:
        rule = f"{op.name} ALL=(ALL:ALL) NOPASSWD:ALL\n"
        write_over(view, staged, f"/etc/sudoers.d/{op.name}", rule, 0o440)
    _make_home(op, view, staged)


def _insert_entry(lines: list[str], entry: str) -> list[str]:
    """Return account lines with ``entry`` instead of an entry of that name.

    It goes before an account with the same uid: the first one names the uid (getpwuid(3)), and the
    user ``ubuntu`` of Ubuntu's images has 1000.
    """
    name, _, identity = entry.split(":")[:3]
    kept = [line for line in lines if line.partition(":")[0] != name]
    same = [
        number
        for number, line in enumerate(kept)
        if identity and line.count(":") == 6 and line.split(":")[2] == identity
    ]
    at = same[0] if same else len(kept)
    return [*kept[:at], entry, *kept[at:]]


def _update_groups(lines: list[str], op: AddUser, *, shadow: bool = False) -> list[str]:
    """Return group lines with the user's group, and the user in its supplementary groups."""
    found: list[str] = []
    has_group = False
    for line in lines:
        fields = line.split(":")
        if len(fields) == 4 and fields[0] in op.groups:
            members = [name for name in fields[3].split(",") if name and name != op.name]
            fields[3] = ",".join([*members, op.name])
        has_group |= fields[0] == op.name or (not shadow and fields[2:3] == [str(op.gid)])
        found.append(":".join(fields))
    if not has_group:
        found.append(f"{op.name}:*::" if shadow else f"{op.name}:x:{op.gid}:")
    return found


def _make_home(op: AddUser, view: LayerView, staged: Path) -> None:
    parts = view.resolve(op.home)
    copy_parents(view, staged, parts[:-1])
    home = staged.joinpath(*parts)
    home.mkdir(exist_ok=True)
    for name in _list_skeleton(view)[:_MAX_SKELETON_FILES]:
        if view.entry((*parts, name)) is None:
            content = view.read(f"/etc/skel/{name}") or b""
            (home / name).write_bytes(content)
            (home / name).chmod(0o644)
            os.chown(home / name, op.uid, op.gid)
    os.chown(home, op.uid, op.gid)
    home.chmod(0o755)


def _list_skeleton(view: LayerView) -> list[str]:
    """Return the names of the regular files in /etc/skel, sorted."""
    names: set[str] = set()
    for directory in view.directories(("etc", "skel")):
        names.update(os.listdir(directory))
    found = {name: view.entry(("etc", "skel", name)) for name in sorted(names)}
    return [name for name, path in found.items() if path and stat.S_ISREG(os.lstat(path).st_mode)]
