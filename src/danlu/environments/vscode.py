"""Add, list and remove servers of VS Code for environments without internet access."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import msgspec

from danlu.engine.vscode_servers import (
    VscodeServer,
    is_cli_name,
    list_servers,
    machine_architecture,
    read_architecture,
    read_server,
)
from danlu.errors import OutsideError, UsageError
from danlu.oci.archive import ArchiveLayout, unpack_archive
from danlu.util.files import private_directory, remove_tree
from danlu.util.locks import file_lock
from danlu.util.paths import Paths

_STAGING = ".new"
_ARCHIVES_HINT = (
    "use vscode-server-linux-{0}.tar.gz, vscodium-reh-linux-{0}-VERSION.tar.gz or"
    " vscode_cli_alpine_{0}_cli.tar.gz"
)


def add_archives(archives: Sequence[Path], paths: Paths, *, commit: str = "") -> list[VscodeServer]:
    """Check and keep archives of servers, and of command lines for them; return the servers.

    ``commit`` is that of command lines, which is otherwise searched in them. Raises
    :class:`UsageError` for an archive that is neither or is for another kind of machine; those
    before it are kept.
    """
    root = paths.vscode_servers
    added: dict[str, VscodeServer] = {}
    with _lock_servers(root):
        programs: list[tuple[Path, Path]] = []
        for archive in archives:
            place = private_directory(root, _STAGING)
            tree = _unpack_archive(archive, place)
            program = _find_cli(tree)
            if program is not None:
                programs.append((archive, program))
                continue
            server = _read_server(archive, tree)
            _replace_tree(tree, root / server.commit / "server")
            added[server.commit] = server
        for archive, program in programs:
            owner = _find_owner(archive, program, root, commit)
            _check_architecture(archive, program)
            _replace_tree(program.parent, root / owner.commit / "cli")
            added[owner.commit] = msgspec.structs.replace(owner, cli=program.name)
    return list(added.values())


def find_vscode_server(text: str, paths: Paths) -> VscodeServer:
    """Return the server whose commit is or starts with ``text``; raise :class:`UsageError`."""
    found = [
        server
        for server in list_servers(paths.vscode_servers)
        if text and server.commit.startswith(text.lower())
    ]
    if len(found) != 1:
        problem = "several servers have" if found else "no server has"
        raise UsageError(
            f"{problem} a commit that starts with {text!r}", hint="`danlu vscode ls` lists them"
        )
    return found[0]


def remove_server(text: str, paths: Paths) -> VscodeServer:
    """Remove the server whose commit is or starts with ``text``, and return it.

    Raises :class:`UsageError` if there is no such server, and :class:`OutsideError` if its files
    cannot be removed.
    """
    root = paths.vscode_servers
    server = find_vscode_server(text, paths)
    with _lock_servers(root):
        gone = private_directory(root, _STAGING)
        try:
            os.rename(root / server.commit, gone / "removed")
            remove_tree(gone)
        except OSError as error:
            raise OutsideError(f"cannot remove {root / server.commit}: {error}") from error
    return server


@contextmanager
def _lock_servers(root: Path) -> Iterator[None]:
    """Lock the servers; remove what this and earlier, interrupted commands left."""
    try:
        root.mkdir(parents=True, exist_ok=True)
        # Every user of an environment must be able to enter it; the data directory is private.
        root.chmod(0o755)
    except OSError as error:
        raise OutsideError(f"cannot create {root}: {error.strerror}") from error
    with file_lock(root.with_name(f"{root.name}.lock")):
        try:
            yield
        finally:
            for place in root.glob(f"{_STAGING}.*"):
                remove_tree(place)


def _unpack_archive(archive: Path, place: Path) -> Path:
    """Unpack ``archive`` below ``place``; return the directory with its files."""
    if not archive.is_file():
        raise UsageError(
            f"{archive} {'is not a file' if archive.exists() else 'does not exist'}",
            hint=_suggest_archives(),
        )
    tree = place / "tree"
    tree.mkdir()
    tree.chmod(0o755)
    try:
        unpack_archive(archive, tree, ArchiveLayout(), name=archive.name)
    except OutsideError as error:
        if isinstance(error.__cause__, OSError):
            raise
        raise UsageError(error.message, hint=_suggest_archives()) from error
    names = os.listdir(tree)
    if len(names) == 1 and (tree / names[0]).is_dir() and not (tree / names[0]).is_symlink():
        return tree / names[0]
    return tree


def _find_cli(tree: Path) -> Path | None:
    """Return the only file of a command line's archive; None for other archives."""
    names = os.listdir(tree)
    if len(names) != 1 or not is_cli_name(names[0]):
        return None
    program = tree / names[0]
    return program if program.is_file() and not program.is_symlink() else None


def _read_server(archive: Path, tree: Path) -> VscodeServer:
    try:
        server = read_server(tree)
    except UsageError as error:
        raise UsageError(
            f"{archive.name} is not a server of VS Code: {error.message}",
            hint=_suggest_archives(),
        ) from error
    _require_architecture(archive, server.architecture)
    return server


def _check_architecture(archive: Path, program: Path) -> None:
    try:
        architecture = read_architecture(program)
    except UsageError as error:
        raise UsageError(
            f"{archive.name} is not a command line of VS Code: {error.message}",
            hint=_suggest_archives(),
        ) from error
    _require_architecture(archive, architecture)


def _require_architecture(archive: Path, architecture: str) -> None:
    own = machine_architecture()
    if architecture != own:
        raise UsageError(
            f"{archive.name} is for {architecture}, but environments on this machine are {own}",
            hint=f"download the archive for linux-{own}",
        )


def _find_owner(archive: Path, program: Path, root: Path, commit: str) -> VscodeServer:
    """Return the server of a command line, which has the commit among its texts."""
    servers = list_servers(root)
    if commit:
        found = [server for server in servers if server.commit == commit.lower()]
    else:
        data = program.read_bytes()
        found = [server for server in servers if server.commit.encode() in data]
    if len(found) == 1:
        return found[0]
    if commit:
        raise UsageError(
            f"cannot add {archive.name}: no server was added with the commit {commit!r}",
            hint="add the server of the same version, too",
        )
    raise UsageError(
        f"{archive.name} belongs to none of the servers that were added",
        hint="add the server of the same version, too, or say which one with --commit COMMIT",
    )


def _replace_tree(tree: Path, target: Path) -> None:
    """Move ``tree`` to ``target``; readers see the old one, or none for a moment."""
    target.parent.mkdir(exist_ok=True)
    target.parent.chmod(0o755)
    old = private_directory(target.parents[1], _STAGING) / "old"
    if target.exists():
        os.rename(target, old)
    os.rename(tree, target)


def _suggest_archives() -> str:
    return _ARCHIVES_HINT.format(machine_architecture())
