"""git: refs resolve to commits, commits to directories, and no code of a repository runs."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from danlu.errors import OutsideError, UsageError
from danlu.sources.git import (
    _git_environment,
    checkout,
    digest_tree,
    read_repository,
    resolve_commit,
)


def git(directory: Path, *args: str) -> str:
    settings = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main"]
    result = subprocess.run(
        ["git", *settings, "-c", "protocol.file.allow=always", *args],
        cwd=directory,
        check=True,
        capture_output=True,
        text=True,
    )
    return result.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    directory = tmp_path / "upstream"
    directory.mkdir()
    git(directory, "init", "-q")
    (directory / "lib.envd").write_text("def f():\n    pass\n")
    (directory / "data.txt").write_text("one")
    git(directory, "add", ".")
    git(directory, "commit", "-qm", "one")
    git(directory, "tag", "-am", "first", "v1")
    (directory / "data.txt").write_text("two")
    git(directory, "commit", "-qam", "two")
    return directory


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "cache"


def test_branches_tags_and_commits_resolve(repository: Path, cache: Path) -> None:
    head, first = git(repository, "rev-parse", "HEAD"), git(repository, "rev-parse", "HEAD~1")
    url = repository.as_uri()
    assert resolve_commit(url, "", cache=cache) == head
    assert resolve_commit(url, "main", cache=cache) == head
    assert resolve_commit(url, "v1", cache=cache) == first, "an annotated tag means its commit"
    assert resolve_commit(url, "refs/tags/v1", cache=cache) == first
    assert resolve_commit(url, first, cache=cache) == first
    assert resolve_commit(url, first[:10], cache=cache) == first


def test_an_unknown_ref_is_named(repository: Path, cache: Path) -> None:
    with pytest.raises(UsageError, match="branch, tag or commit 'nope' not found"):
        resolve_commit(repository.as_uri(), "nope", cache=cache)


def test_a_missing_repository_is_an_outside_error(tmp_path: Path, cache: Path) -> None:
    with pytest.raises(OutsideError, match="absent"):
        resolve_commit((tmp_path / "absent").as_uri(), "main", cache=cache)


@pytest.mark.parametrize(
    ("url", "ref"), [("--upload-pack=touch x", ""), ("ext::sh -c id", ""), ("https://h/r", "-x")]
)
def test_options_and_commands_are_rejected_as_addresses(url: str, ref: str, cache: Path) -> None:
    with pytest.raises(UsageError, match="invalid repository URL or ref"):
        resolve_commit(url, ref, cache=cache)
    with pytest.raises(UsageError):
        checkout(url, ref or "0" * 40, cache=cache)
    assert not cache.exists()


def test_credentials_of_the_address_are_not_in_the_checkout(
    repository: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gitconfig"
    config.write_text(f'[url "{repository.parent.as_uri()}/"]\n\tinsteadOf = https://ada:pass@h/\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    head = git(repository, "rev-parse", "HEAD")
    directory = checkout("https://ada:pass@h/upstream", head, cache=cache)
    assert git(directory, "remote", "get-url", "origin") == "https://h/upstream"
    assert "pass" not in (directory / ".git/config").read_text()


def test_git_asks_nobody_and_keeps_the_users_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {
        *("GIT_ASKPASS", "GIT_SSH_COMMAND", "GIT_SSL_CAINFO", "GIT_CONFIG_GLOBAL"),
        *("GIT_PROXY_COMMAND", "GIT_HTTP_USER_AGENT", "GIT_TRACE"),
    }
    dropped = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_TEMPLATE_DIR"}
    for name in (*kept, *dropped):
        monkeypatch.setenv(name, "x")
    environment = _git_environment()
    assert kept <= environment.keys()
    assert not dropped & environment.keys()
    assert environment["GIT_TERMINAL_PROMPT"] == "0"


def test_a_checkout_has_the_commit_and_its_tags(repository: Path, cache: Path) -> None:
    first = git(repository, "rev-parse", "v1^{}")
    directory = checkout(repository.as_uri(), first, cache=cache)
    assert (directory / "data.txt").read_text() == "one"
    assert git(directory, "describe", "--tags") == "v1"


def test_a_checkout_is_kept_for_offline(repository: Path, cache: Path) -> None:
    head, url = git(repository, "rev-parse", "HEAD"), repository.as_uri()
    with pytest.raises(OutsideError, match="offline"):
        checkout(url, head, cache=cache, offline=True)
    directory = checkout(url, head, cache=cache)
    subprocess.run(["rm", "-rf", repository], check=True)
    assert checkout(url, head, cache=cache, offline=True) == directory


def test_hooks_of_template_directories_do_not_run(
    repository: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hooks = tmp_path / "template" / "hooks"
    hooks.mkdir(parents=True)
    (hooks / "post-checkout").write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    (hooks / "post-checkout").chmod(0o755)
    monkeypatch.setenv("GIT_TEMPLATE_DIR", str(hooks.parent))
    checkout(repository.as_uri(), git(repository, "rev-parse", "HEAD"), cache=cache)
    assert not (tmp_path / "ran").exists()


def test_the_users_instead_of_is_honoured(
    repository: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gitconfig"
    config.write_text(f'[url "{repository.parent.as_uri()}/"]\n\tinsteadOf = https://nowhere/\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    head = git(repository, "rev-parse", "HEAD")
    assert resolve_commit("https://nowhere/upstream", "main", cache=cache) == head


def test_submodules_come_along(
    repository: Path, tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "gitconfig"
    config.write_text('[protocol "file"]\n\tallow = always\n')
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
    outer = tmp_path / "outer"
    outer.mkdir()
    git(outer, "init", "-q")
    git(outer, "submodule", "--quiet", "add", repository.as_uri(), "inner")
    git(outer, "commit", "-qm", "with a submodule")
    directory = checkout(outer.as_uri(), git(outer, "rev-parse", "HEAD"), cache=cache)
    assert (directory / "inner" / "data.txt").read_text() == "two"


def test_reading_gives_build_files_and_the_commit(repository: Path, cache: Path) -> None:
    head, url = git(repository, "rev-parse", "HEAD"), repository.as_uri()
    included = read_repository(url, "main", commit="", cache=cache)
    assert included.commit == head
    assert dict(included.files) == {"lib.envd": "def f():\n    pass\n"}
    subprocess.run(["rm", "-rf", repository], check=True)
    again = read_repository(url, "main", commit=head, cache=cache, offline=True)
    assert again == included


def test_an_executable_build_file_is_read(repository: Path, cache: Path) -> None:
    (repository / "lib.envd").chmod(0o755)
    git(repository, "commit", "-qam", "executable")
    included = read_repository(repository.as_uri(), "", commit="", cache=cache)
    assert set(included.files) == {"lib.envd"}


def test_a_symbolic_link_is_rejected_as_build_file(repository: Path, cache: Path) -> None:
    (repository / "evil.envd").symlink_to("/etc/passwd")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "link")
    included = read_repository(repository.as_uri(), "", commit="", cache=cache)
    assert set(included.files) == {"lib.envd"}


def test_reading_then_checking_out_deepens_the_same_cache(repository: Path, cache: Path) -> None:
    head, url = git(repository, "rev-parse", "HEAD"), repository.as_uri()
    read_repository(url, "", commit="", cache=cache)
    directory = checkout(url, head, cache=cache)
    assert git(directory, "describe", "--tags").startswith("v1-1-")


def test_a_tree_digest_covers_content_and_not_git(repository: Path, cache: Path) -> None:
    head = git(repository, "rev-parse", "HEAD")
    directory = checkout(repository.as_uri(), head, cache=cache)
    before = digest_tree(directory)
    (directory / ".git" / "extra").write_text("x")
    assert digest_tree(directory) == before
    (directory / "data.txt").write_text("three")
    assert digest_tree(directory) != before


def test_a_tree_digest_covers_links_and_not_what_they_lead_to(tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "data").write_text("one")
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "data").write_text("one")
    digests = set()
    # A file, links to the same content, to a directory, to nothing, and with a name of any bytes.
    for target in ("", "data", "../outside/data", "../outside", "nowhere", os.fsdecode(b"\xff")):
        (tree / "entry").unlink(missing_ok=True)
        if target:
            (tree / "entry").symlink_to(target)
        else:
            (tree / "entry").write_text("one")
        digests.add(digest_tree(tree))
    assert len(digests) == 6
    before = digest_tree(tree)
    (tree / "entry").unlink()
    (tree / "entry").symlink_to("../outside/data")
    linked = digest_tree(tree)
    (tmp_path / "outside" / "data").write_text("two")
    assert digest_tree(tree) == linked != before
