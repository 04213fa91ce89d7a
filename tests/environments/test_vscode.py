"""Archives of VS Code's server: checked, kept by commit, listed and removed."""

from __future__ import annotations

import gzip
import io
import os
import stat
import tarfile
from pathlib import Path
from typing import Any

import pytest

from danlu.engine.vscode_servers import list_servers, machine_architecture
from danlu.environments.vscode import add_archives, remove_server
from danlu.errors import DanluError, UsageError
from danlu.util.paths import Paths
from tests.fakes.vscode_archives import (
    COMMIT,
    make_cli,
    make_elf,
    make_server,
    server_files,
    write_archive,
)
from tests.hostile_archives import CASES, SECRET, HostileArchive, tar_of

OTHER = "f" * 40
FOREIGN = "arm64" if machine_architecture() == "x64" else "x64"


@pytest.fixture
def paths(tmp_path: Path) -> Paths:
    return Paths.of({"DANLU_HOME": str(tmp_path / "home")})


def list_commits(paths: Paths) -> list[str]:
    return [server.commit for server in list_servers(paths.vscode_servers)]


def test_a_server_is_kept_by_its_commit(tmp_path: Path, paths: Paths) -> None:
    (server,) = add_archives([make_server(tmp_path / "server.tar.gz")], paths)
    assert (server.commit, server.name, server.version) == (COMMIT, "Code", "1.105.1")
    assert list_servers(paths.vscode_servers) == [server]
    assert [link for link, _ in server.list_links()] == [
        f".vscode-server/cli/servers/Stable-{COMMIT}/server",
        f".vscode-server/bin/{COMMIT}",
    ]
    program = paths.vscode_servers / COMMIT / "server/bin/code-server"
    # Every user of a container must be able to read it.
    for path in (program, *program.parents[:4]):
        assert path.stat().st_mode & 0o755 == 0o755, path
        assert path.stat().st_uid == os.getuid()
    assert os.listdir(paths.vscode_servers) == [COMMIT]


def test_an_archive_without_a_top_directory_is_read(tmp_path: Path, paths: Paths) -> None:
    files = server_files(
        nameShort="VSCodium",
        serverApplicationName="codium-server",
        serverDataFolderName=".vscodium-server",
    )
    (server,) = add_archives([write_archive(tmp_path / "reh.tar.gz", files, top="./")], paths)
    assert f".vscodium-server/bin/{COMMIT}" in dict(server.list_links())


def test_a_command_line_is_kept_with_its_server(tmp_path: Path, paths: Paths) -> None:
    archives = [
        make_cli(tmp_path / "cli.tar.gz"),
        make_server(tmp_path / "other.tar.gz", commit=OTHER),
        make_server(tmp_path / "server.tar.gz"),
    ]
    added = {server.commit: server.cli for server in add_archives(archives, paths)}
    assert added == {COMMIT: "code", OTHER: ""}
    found = {server.commit: server for server in list_servers(paths.vscode_servers)}
    assert f".vscode-server/code-{COMMIT}" in dict(found[COMMIT].list_links())
    # Replacing the server keeps it.
    add_archives([make_server(tmp_path / "server.tar.gz", version="1.105.2")], paths)
    (server,) = (item for item in list_servers(paths.vscode_servers) if item.commit == COMMIT)
    assert (server.version, server.cli) == ("1.105.2", "code")


def test_a_command_line_without_a_server_is_refused(tmp_path: Path, paths: Paths) -> None:
    cli = make_cli(tmp_path / "cli.tar.gz", OTHER)
    add_archives([make_server(tmp_path / "server.tar.gz")], paths)
    with pytest.raises(UsageError, match="belongs to none of the servers"):
        add_archives([cli], paths)
    with pytest.raises(UsageError, match="no server was added with the commit"):
        add_archives([cli], paths, commit=OTHER)
    (server,) = add_archives([cli], paths, commit=COMMIT)
    assert server.cli == "code"


@pytest.mark.parametrize("make", [make_server, make_cli])
def test_an_archive_for_another_processor_is_refused(
    tmp_path: Path, paths: Paths, make: object
) -> None:
    add_archives([make_server(tmp_path / "own.tar.gz")], paths)
    archive = make(tmp_path / "foreign.tar.gz", architecture=FOREIGN)  # type: ignore[operator]
    with pytest.raises(UsageError, match=rf"foreign.tar.gz is for {FOREIGN}, but") as caught:
        add_archives([archive], paths)
    assert f"linux-{machine_architecture()}" in caught.value.hint


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("commit", "../../etc"),
        ("commit", COMMIT.upper()),
        ("commit", f"{COMMIT}\n"),
        ("commit", 5),
        ("serverDataFolderName", "../.ssh-server"),
        ("serverDataFolderName", ".ssh"),
        ("serverDataFolderName", "/root/.vscode-server"),
        ("serverApplicationName", "../node"),
        ("nameShort", "a\x1b[2J"),
        ("version", "x" * 1000),
        ("quality", None),
    ],
)
def test_an_invalid_product_file_is_refused(
    tmp_path: Path, paths: Paths, name: str, value: object
) -> None:
    fields: dict[str, Any] = {name: value}
    files = {**server_files(), "product.json": server_files(**fields)["product.json"]}
    archive = write_archive(tmp_path / "server.tar.gz", files, top="server/")
    with pytest.raises(UsageError, match=r"product\.json") as caught:
        add_archives([archive], paths)
    assert str(caught.value).isprintable()
    assert os.listdir(paths.vscode_servers) == []


@pytest.mark.parametrize("missing", ["product.json", "node", "bin/code-server"])
def test_an_archive_of_something_else_is_refused(
    tmp_path: Path, paths: Paths, missing: str
) -> None:
    files = server_files()
    del files[missing]
    archive = write_archive(tmp_path / "other.tar.gz", files, top="other/")
    with pytest.raises(UsageError, match=rf"not a server of VS Code.* no .*{missing}"):
        add_archives([archive], paths)
    assert os.listdir(paths.vscode_servers) == []


def test_a_program_of_another_system_is_refused(tmp_path: Path, paths: Paths) -> None:
    files = {**server_files(), "node": b"MZ" + bytes(100)}
    with pytest.raises(UsageError, match="node is not for Linux"):
        add_archives([write_archive(tmp_path / "windows.tar.gz", files, top="a/")], paths)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_hostile_archive_changes_nothing(
    tmp_path: Path, paths: Paths, case: HostileArchive
) -> None:
    outside = tmp_path / "home" / "outside"
    outside.mkdir(parents=True)
    (outside / "secret").write_bytes(SECRET)
    archive = tmp_path / "server.tar.gz"
    archive.write_bytes(gzip.compress(tar_of(case), 1))
    # None of them is a server.
    with pytest.raises(DanluError) as caught:
        add_archives([archive], paths)
    assert str(caught.value).isprintable()
    assert (outside / "secret").read_bytes() == SECRET
    assert os.listdir(outside) == ["secret"]
    assert sorted(os.listdir(paths.data)) == ["outside", "vscode", "vscode.lock"]
    assert os.listdir(paths.vscode_servers) == []


@pytest.mark.parametrize("name", ["product.json", "node", "bin/code-server", "bin"])
def test_a_link_is_not_read_as_a_file_of_the_server(
    tmp_path: Path, paths: Paths, name: str
) -> None:
    # Two links of an archive, one after another, could lead out of it.
    archive = tmp_path / "server.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        for path, content in server_files().items():
            entry = tarfile.TarInfo(f"s/{path.replace(name, 'real', 1)}")
            entry.size, entry.mode = len(content), 0o755
            file.addfile(entry, io.BytesIO(content))
        link = tarfile.TarInfo(f"s/{name}")
        link.type = tarfile.SYMTYPE
        link.linkname = "../real" if "/" in name else "real"
        file.addfile(link)
    with pytest.raises(UsageError, match="is not a server of VS Code"):
        add_archives([archive], paths)


def test_special_modes_are_dropped(tmp_path: Path, paths: Paths) -> None:
    archive = tmp_path / "server.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        for path, content in server_files().items():
            entry = tarfile.TarInfo(f"s/{path}")
            entry.size, entry.mode = len(content), 0o6777
            file.addfile(entry, io.BytesIO(content))
    add_archives([archive], paths)
    for unpacked in (paths.vscode_servers / COMMIT).rglob("*"):
        assert stat.S_IMODE(unpacked.stat().st_mode) == 0o755


def test_a_removed_server_is_gone(tmp_path: Path, paths: Paths) -> None:
    archives = [
        make_server(tmp_path / f"{commit}.tar.gz", commit=commit) for commit in (COMMIT, OTHER)
    ]
    add_archives(archives, paths)
    assert remove_server(COMMIT[:6].upper(), paths).commit == COMMIT
    assert list_commits(paths) == [OTHER]
    assert os.listdir(paths.vscode_servers) == [OTHER]
    for text in (COMMIT, "", "0123z"):
        with pytest.raises(UsageError, match="no server has a commit"):
            remove_server(text, paths)


def test_an_unclear_commit_removes_nothing(tmp_path: Path, paths: Paths) -> None:
    commits = ["a" * 40, "a" * 39 + "b"]
    add_archives(
        [make_server(tmp_path / f"{commit}.tar.gz", commit=commit) for commit in commits], paths
    )
    with pytest.raises(UsageError, match="several servers have"):
        remove_server("aaaa", paths)
    assert list_commits(paths) == commits


def test_leftovers_of_an_interrupted_add_are_removed(tmp_path: Path, paths: Paths) -> None:
    left = paths.vscode_servers / ".new.0123"
    left.mkdir(parents=True)
    (left / "node").write_bytes(make_elf())
    add_archives([make_server(tmp_path / "server.tar.gz")], paths)
    assert os.listdir(paths.vscode_servers) == [COMMIT]
