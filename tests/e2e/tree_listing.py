"""Print what a root file system contains, as JSON: executed by the Python of an environment."""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys

#: Other file systems, and what no image keeps (docs/guides/environments.md, manual changes).
SKIPPED = {
    *("dev", "proc", "run", "sys", "tmp", "workspace", "var/tmp", "var/log", "var/cache"),
    *("var/lib/apt", "etc/ld.so.cache", "root/.cache", "root/.npm"),
    # Where Docker and Podman mount the configuration of pip and uv.
    "etc/xdg",
    *("etc/hostname", "etc/hosts", "etc/resolv.conf", "etc/machine-id", "etc/.pwd.lock"),
    *("etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-", "etc/subuid-", "etc/subgid-"),
}
#: Directories with the records of package managers, which are compared by their commands.
RECORDS = ("var/lib/dpkg",)
#: Wheels of an image have no bytecode next to them, and no record of who asked for them.
UNRECORDED = ("__pycache__", ".dist-info/REQUESTED")


def list_tree(root: str) -> dict[str, list[object]]:
    """Return the attributes of each entry by its path; times are not compared."""
    entries: dict[str, list[object]] = {}
    shared: dict[tuple[int, int], list[str]] = {}
    waiting = [""]
    while waiting:
        directory = waiting.pop()
        for name in sorted(os.listdir(os.fsencode(os.path.join(root, directory)))):
            path = os.path.join(directory, os.fsdecode(name))
            if path in SKIPPED or path in RECORDS or path.endswith(UNRECORDED):
                continue
            entries[path] = describe_entry(os.path.join(root, path), path)
            status = os.lstat(os.path.join(root, path))
            if stat.S_ISDIR(status.st_mode):
                waiting.append(path)
            elif stat.S_ISREG(status.st_mode):
                shared.setdefault((status.st_dev, status.st_ino), []).append(path)
    for paths in shared.values():
        # danlu's store has further links to some files.
        if len(paths) > 1:
            entries |= {path: [entries[path], "of", *sorted(paths)] for path in paths}
    return entries


def describe_entry(place: str, path: str) -> list[object]:
    """Return type, mode, owner, content and extended attributes."""
    status = os.lstat(place)
    content = ""
    if stat.S_ISLNK(status.st_mode):
        content = os.readlink(place)
    elif path in ("etc/shadow", "etc/gshadow", "etc/passwd", "etc/group"):
        content = " ".join(sorted(read_accounts(place)))
    elif stat.S_ISREG(status.st_mode) and not is_made_by_installer(path):
        with open(place, "rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    xattrs = {}
    if not stat.S_ISLNK(status.st_mode):
        names = sorted(os.listxattr(place))
        xattrs = {name: os.getxattr(place, name).hex() for name in names}
    return [oct(status.st_mode), status.st_uid, status.st_gid, content, xattrs]


def is_made_by_installer(path: str) -> bool:
    """Return whether pip and danlu write a file of a wheel differently."""
    return path.startswith("opt/venv/bin/") or path.endswith(("/RECORD", "/INSTALLER"))


def read_accounts(place: str) -> list[str]:
    """Return the entries without the day of the last change of a password."""
    with open(place) as file:
        lines = [line.rstrip("\n").split(":") for line in file]
    is_shadow = place.endswith("/shadow")
    return [":".join(line[:2] + line[3:] if is_shadow else line) for line in lines]


if __name__ == "__main__":
    json.dump(list_tree(sys.argv[1]), sys.stdout)
