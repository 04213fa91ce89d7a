"""A team's templates come from directories and git repositories; none of it is trusted."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from danlu.convert import init_from_template
from danlu.convert.team_template import (
    MAX_FILE_BYTES,
    MAX_FILES,
    TemplateAddress,
    parse_template_address,
)
from danlu.errors import OutsideError, UsageError
from tests.sources.test_git import git

BUILD = 'def build():\n    base(os="debian12")\n'


@pytest.fixture
def template(tmp_path: Path) -> Path:
    """A directory with two templates, in a git repository with one commit."""
    root = tmp_path / "templates"
    write(root / "vision/build.envd", BUILD)
    write(root / "vision/src/train.py", "print('elixir')\n")
    write(root / "vision/tools/run.sh", "#!/bin/sh\n").chmod(0o755)
    write(root / "text/build.py", "from danlu import base\n")
    git(root, "init", "-q")
    return commit(root)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    directory = tmp_path / "project"
    directory.mkdir()
    return directory


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def commit(root: Path) -> Path:
    git(root, "add", "--all", "--force")
    git(root, "commit", "-qm", "a change")
    return root


def write_object(root: Path, text: str, *command: str) -> str:
    """Create a git object from ``text`` and return its name."""
    result = subprocess.run(
        ["git", *command], cwd=root, input=text.encode(), capture_output=True, check=True
    )
    return result.stdout.decode().strip()


def commit_link(root: Path, name: str, target: str) -> None:
    """Commit a link to anything, also in the place of a file."""
    link = write_object(root, target, "hash-object", "-w", "--stdin")
    git(root, "update-index", "--add", "--cacheinfo", f"120000,{link},{name}")
    git(root, "commit", "-qm", "a link")


def commit_path(root: Path, path: str) -> None:
    """Commit a file under a path that git would not add; `mktree` writes any tree."""
    parts = path.split("/")
    blob = git(root, "rev-parse", "HEAD:vision/build.envd")
    entry = f"100644 blob {blob}\t{parts[-1]}\n"
    for parent in reversed(parts[:-1]):
        entry = f"040000 tree {write_object(root, entry, 'mktree')}\t{parent}\n"
    tree = write_object(root, f"{entry}100644 blob {blob}\tbuild.envd\n", "mktree")
    git(root, "update-ref", "refs/heads/crafted", git(root, "commit-tree", "-m", "x", tree))


def list_tree(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*"))


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("vision", None),
        ("./vision", TemplateAddress("", "", "./vision")),
        (".", TemplateAddress("", "", ".")),
        ("https://h.example/t/r", TemplateAddress("https://h.example/t/r", "", "")),
        ("https://h.example/r.git#v1", TemplateAddress("https://h.example/r.git", "v1", "")),
        ("https://h.example/r#v1:a/b", TemplateAddress("https://h.example/r", "v1", "a/b")),
        ("https://h.example/r#:a", TemplateAddress("https://h.example/r", "", "a")),
        (
            "https://h.example:8443/r.git:a",
            TemplateAddress("https://h.example:8443/r.git", "", "a"),
        ),
        ("git@h.example:t/r.git#main:a", TemplateAddress("git@h.example:t/r.git", "main", "a")),
        ("git@h.example:t/r.git:a", TemplateAddress("git@h.example:t/r.git", "", "a")),
    ],
)
def test_addresses_are_read_as_by_docker_build(text: str, address: TemplateAddress | None) -> None:
    assert parse_template_address(text) == address


def test_a_template_of_a_repository_is_copied_with_modes(
    template: Path, project: Path, tmp_path: Path
) -> None:
    url = f"{template.as_uri()}#main:vision"
    report = init_from_template(project, url, cache=tmp_path / "cache")
    assert list_tree(project) == [*("build.envd", "src", "src/train.py", "tools", "tools/run.sh")]
    assert report.text == BUILD
    assert report.source == f"{template.as_uri()}#{git(template, 'rev-parse', 'HEAD')}:vision"
    assert (project / "tools/run.sh").stat().st_mode & 0o111
    assert not (project / "src/train.py").stat().st_mode & 0o111


def test_the_commit_that_init_prints_gives_the_same_files_later(
    template: Path, project: Path, tmp_path: Path
) -> None:
    pinned = f"{template.as_uri()}#{git(template, 'rev-parse', 'HEAD')}:vision"
    write(template / "vision/build.envd", BUILD + "    shell()\n")
    commit(template)
    report = init_from_template(project, pinned, cache=tmp_path / "cache")
    assert report.source == pinned
    assert (project / "build.envd").read_text() == BUILD


def test_a_directory_and_a_single_file_are_templates(
    template: Path, project: Path, tmp_path: Path
) -> None:
    report = init_from_template(project, str(template / "vision"))
    assert report.files == ("build.envd", "src/train.py", "tools/run.sh")
    other = tmp_path / "other"
    other.mkdir()
    write(template / "gpu.envd", BUILD)
    init_from_template(other, "../templates/gpu.envd")
    assert list_tree(other) == ["build.envd"]


def test_a_directory_of_templates_lists_them(template: Path, project: Path) -> None:
    with pytest.raises(UsageError, match="is not a template") as caught:
        init_from_template(project, str(template))
    assert caught.value.hint == "templates there: text, vision; add one to the path"


def test_a_python_build_file_is_copied_and_not_executed(
    template: Path, project: Path, tmp_path: Path
) -> None:
    write(template / "text/build.py", f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    report = init_from_template(project, str(template / "text"))
    assert report.path.name == "build.py"
    assert not (tmp_path / "ran").exists()


def test_existing_files_are_kept_and_nothing_is_written(template: Path, project: Path) -> None:
    write(project / "src/train.py", "mine")
    with pytest.raises(UsageError, match=r"would overwrite src/train\.py"):
        init_from_template(project, str(template / "vision"))
    assert list_tree(project) == ["src", "src/train.py"]
    with pytest.raises(UsageError, match=r"would overwrite src/train\.py"):
        init_from_template(project, str(template / "vision"), force=True)
    write(project / "src/train.py", "print('elixir')\n")
    write(project / "build.envd", "old")
    with pytest.raises(UsageError, match=r"build\.envd already exists"):
        init_from_template(project, str(template / "vision"))
    init_from_template(project, str(template / "vision"), force=True)
    assert (project / "build.envd").read_text() == BUILD


def test_a_link_in_the_project_does_not_lead_the_files_out(
    template: Path, project: Path, tmp_path: Path
) -> None:
    (tmp_path / "outside").mkdir()
    (project / "src").symlink_to(tmp_path / "outside")
    with pytest.raises(UsageError, match="would overwrite src"):
        init_from_template(project, str(template / "vision"))
    assert list_tree(tmp_path / "outside") == []


def test_a_failed_write_leaves_nothing(
    template: Path, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("danlu.convert.team_template._create_file", refuse)
    with pytest.raises(OutsideError, match="No space left on device"):
        init_from_template(project, str(template / "vision"))
    assert list_tree(project) == []


def test_links_are_refused(template: Path, project: Path, tmp_path: Path) -> None:
    commit_link(template, "vision/passwd", "/etc/passwd")
    with pytest.raises(UsageError, match=r"passwd is not a file; links"):
        init_from_template(project, f"{template.as_uri()}#:vision", cache=tmp_path / "cache")
    (template / "vision/up").symlink_to("../text")
    with pytest.raises(UsageError, match=r"up is not a file; links"):
        init_from_template(project, str(template / "vision"))
    assert list_tree(project) == []


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        ("a/../../evil", "leads out of the template"),
        (".git/hooks/post-checkout", "would change a git repository"),
        ("sub/.GIT/config", "would change a git repository"),
        ("bell\x07.py", "is not a valid name"),
        ("back\\slash", "leads out of the template"),
    ],
)
def test_paths_that_lead_out_are_refused(
    template: Path, project: Path, tmp_path: Path, path: str, reason: str
) -> None:
    commit_path(template, path)
    with pytest.raises(UsageError, match=reason):
        init_from_template(project, f"{template.as_uri()}#crafted", cache=tmp_path / "cache")
    assert list_tree(project) == []


def test_submodules_large_files_and_many_files_are_refused(
    template: Path, project: Path, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    with (template / "vision/model.bin").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    with pytest.raises(UsageError, match=r"model\.bin is larger than"):
        init_from_template(project, str(template / "vision"))
    (template / "vision/model.bin").unlink()
    for number in range(MAX_FILES):
        write(template / f"text/{number}", "")
    commit(template)
    with pytest.raises(UsageError, match="is too large"):
        init_from_template(project, f"{template.as_uri()}#:text", cache=cache)
    head = git(template, "rev-parse", "HEAD")
    git(template, "update-index", "--add", "--cacheinfo", f"160000,{head},vision/module")
    git(template, "commit", "-qm", "a submodule")
    with pytest.raises(UsageError, match="module is not a file"):
        init_from_template(project, f"{template.as_uri()}#:vision", cache=cache)
    os.mkfifo(template / "vision/pipe")
    with pytest.raises(UsageError, match="pipe is not a file"):
        init_from_template(project, str(template / "vision"))
    assert list_tree(project) == []


@pytest.mark.parametrize(
    ("suffix", "reason", "hint"),
    [
        ("", "build.envd not found", "templates there: text, vision"),
        ("#:visoin", "visoin is not a template", "templates there: vision"),
        ("#nope", "'nope' not found", ""),
        ("#main:../vision", "not a path in the repository", "relative to the root"),
    ],
)
def test_repository_without_a_template_is_rejected(
    template: Path, project: Path, tmp_path: Path, suffix: str, reason: str, hint: str
) -> None:
    with pytest.raises(UsageError, match=reason) as caught:
        init_from_template(project, template.as_uri() + suffix, cache=tmp_path / "cache")
    assert hint in caught.value.hint


def test_passwords_and_missing_repositories(project: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with pytest.raises(OutsideError) as caught:
        init_from_template(project, "http://me:secret@127.0.0.1:1/t.git", cache=cache)
    assert "secret" not in repr((caught.value.message, caught.value.details, caught.value.hint))
    with pytest.raises(UsageError, match=r"template directory \./absent not found"):
        init_from_template(project, "./absent")
    with pytest.raises(UsageError, match="cannot read the template"):
        init_from_template(project, "~nobody-has-this-name/templates")
    with pytest.raises(UsageError, match="invalid repository URL"):
        init_from_template(project, "ext::sh -c id://x", cache=cache)
