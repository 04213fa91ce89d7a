"""Ignore files, compared with the tools that define them: moby's pattern matcher, and git."""

from __future__ import annotations

import json
import os
import random
import shutil
import stat
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from danlu.errors import MachineError, UsageError
from danlu.sources.build_context import find_ignored, list_entries
from danlu.sources.ignore_rules import DockerignoreRules
from danlu.util.safe_paths import ProjectTree

CASES = json.loads((Path(__file__).parent / "ignore_cases.json").read_text())
GO_PACKAGES = Path("/usr/share/gocode")
#: How danlu differs on purpose, or which outcome is not that of a build context.
BY_DESIGN = {
    "git directory": "a repository's own directory never belongs to a context",
    "dockerfile-specific ignore file wins": "there is no Dockerfile; `danlu init` lists the file",
}
#: What danlu refuses by name instead.
REFUSED = {"class at start is posix"}


def run_git(directory: Path, *args: str) -> bytes:
    return subprocess.run(["git", *args], cwd=directory, check=True, stdout=subprocess.PIPE).stdout


def list_project(project: Path, source: str = ".") -> list[str]:
    """List files, and directories without any, as the cases do."""
    with ProjectTree(project) as tree:
        entries = list_entries(tree, source)
        paths = [entry.path for entry in entries]
        directories = {entry.path for entry in entries if stat.S_ISDIR(entry.status.st_mode)}
    parents = {os.path.dirname(path) for path in paths}
    return sorted(
        f"{path}/" if path in directories else path
        for path in paths
        if path not in parents and path != ".dockerignore"
    )


def write_files(project: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = project / name
        if name.endswith("/"):
            path.mkdir(parents=True)
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="")


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["name"])
def test_ignore_file_means_what_its_tool_says(tmp_path: Path, case: dict[str, Any]) -> None:
    if case["name"] in BY_DESIGN:
        pytest.skip(BY_DESIGN[case["name"]])
    right = case["right"]
    if "not ignored" in right:
        run_git(tmp_path, "init", "-q")
    write_files(tmp_path, case["files"])
    for name in case.get("tracked", ()):
        run_git(tmp_path, "add", "-f", name)
    if "refused" in right:
        with pytest.raises(UsageError, match=r"\.dockerignore, line \d"):
            list_project(tmp_path)
        return
    expected = right.get("in the context", right.get("not ignored"))
    if case["name"] in REFUSED:
        with pytest.raises(UsageError, match="unsupported escape, class"):
            list_project(tmp_path)
    else:
        assert list_project(tmp_path) == sorted(expected)


# -- .dockerignore against moby's pattern matcher

WORDS = ("a", "b", "ab", "src", "x.py", ".env", "data", "*", "**", "?", "*.py", "a*", "*b", "s?c")
ODD_WORDS = (
    *("[ab]", "[^a]", "[a-c]x", "[!a]", "\\*", "\\a", "a\\", "[", "[a", "]", "a]", "..", ".", ""),
    *("**a", "a**", "**b**", "***", "é", "a b", "^a", "a^*", "$", "(b)", "a+", "[[:alpha:]]"),
    *(
        "[]a]",
        "[a-]",
        "[-a]",
        "[c-a]",
        "[*]",
        "[.]",
        "[\\]]",
        "!",
        "!a",
        "#a",
        "{a}",
        "[^^]",
        "[$b]",
    ),
)
NAMES = ("a", "b", "ab", "src", "x.py", ".env", "data", "ax", "xb", "sxc", "é", "^a", "!a", "#a")


def make_ignore_file(chance: random.Random) -> str:
    lines = []
    for _ in range(chance.randint(1, 6)):
        words = WORDS if chance.random() < 0.8 else WORDS + ODD_WORDS
        parts = [chance.choice(words) for _ in range(chance.choice((1, 1, 2, 2, 3)))]
        start = chance.choice(("", "", "", "!", "!", "/", "./", "! ", " ", "!/", "#", "/!"))
        end = chance.choice(("", "", "", "/", " ", "\r", "//", "/."))
        lines.append(start + "/".join(parts) + end)
    return chance.choice(("", "", "", "\ufeff")) + "\n".join(lines)


def make_paths(chance: random.Random) -> list[str]:
    return ["/".join(chance.choice(NAMES) for _ in range(chance.randint(1, 4))) for _ in range(25)]


def list_excluded(text: str, paths: Sequence[str]) -> set[str] | None:
    """Return what danlu excludes; None if it refuses the file."""
    try:
        rules = DockerignoreRules(text.removeprefix("\ufeff"))
    except UsageError:
        return None
    excluded = rules.filter_paths(paths)
    for path in paths:
        for parent in [path.rpartition("/")[0]] if "/" in path and path not in excluded else ():
            if rules.excludes(parent, is_dir=True):
                assert rules.may_include_below(parent), (text, path)
    return excluded


@pytest.mark.real
@pytest.mark.slow
def test_20000_random_dockerignore_files_mean_what_moby_says(tmp_path: Path) -> None:
    # Not among what setup.sh installs: Go's compiler is larger than all the rest.
    if not shutil.which("go") or not (GO_PACKAGES / "src/github.com/moby/patternmatcher").is_dir():
        pytest.skip("apt-get install golang-go golang-github-moby-patternmatcher-dev")
    program = tmp_path / "moby_patterns"
    subprocess.run(
        ["go", "build", "-o", program, Path(__file__).parent / "moby_patterns.go"],
        env={**os.environ, "GO111MODULE": "off", "GOPATH": f"{tmp_path}:{GO_PACKAGES}"},
        check=True,
    )
    chance = random.Random(20)
    requests = [(make_ignore_file(chance), make_paths(chance)) for _ in range(20_000)]
    lines = (json.dumps({"Text": text, "Paths": paths}) for text, paths in requests)
    answers = subprocess.run(
        [program], input="\n".join(lines).encode(), stdout=subprocess.PIPE, check=True
    ).stdout.splitlines()
    counts = {"same": 0, "both refuse": 0, "refused": 0}
    for (text, paths), answer in zip(requests, map(json.loads, answers), strict=True):
        found = list_excluded(text, paths)
        right = None if answer is None else set(answer)
        assert found is None or found == right, (text, paths)
        counts["same" if found is not None else "both refuse" if right is None else "refused"] += 1
    assert counts["same"] > 12_000, counts


# -- .gitignore against git


def list_by_git(project: Path) -> set[str]:
    listing = run_git(project, "ls-files", "-z", "-c", "-o", "--exclude-standard")
    return set(map(os.fsdecode, filter(None, listing.split(b"\0"))))


@pytest.mark.parametrize("seed", range(12))
def test_random_repositories_have_the_files_that_git_lists(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    run_git(tmp_path, "init", "-q")
    paths = {path for path in make_paths(chance) if not path.startswith("#")}
    for path in sorted(paths):
        try:
            write_files(tmp_path, {path: ""})
        except OSError:  # a directory has that name, or a file the directory's
            paths.discard(path)
    for place in ("", *(path.rpartition("/")[0] for path in chance.sample(sorted(paths), 3))):
        (tmp_path / place / ".gitignore").write_text(make_ignore_file(chance))
    (tmp_path / ".git/info/exclude").write_text(make_ignore_file(chance))
    run_git(tmp_path, "add", "-f", *chance.sample(sorted(paths), 3))
    expected = list_by_git(tmp_path)
    assert {path for path in list_project(tmp_path) if not path.endswith("/")} == expected
    with ProjectTree(tmp_path) as tree:
        assert find_ignored(tree, paths) == paths - expected


def test_repository_within_a_project_has_its_own_rules(tmp_path: Path) -> None:
    for name in ("", "sub", "sub/deep", "gone"):
        (tmp_path / name).mkdir(exist_ok=True)
        run_git(tmp_path / name, "init", "-q")
        write_files(tmp_path / name, {"a.log": "", "x.py": ""})
    write_files(tmp_path, {".gitignore": "*.log\ngone\n", "sub/.gitignore": "x.py\n"})
    (tmp_path / "link").symlink_to("sub")
    files = ["sub/.gitignore", "sub/a.log", "sub/deep/a.log", "sub/deep/x.py"]
    assert list_project(tmp_path) == [".gitignore", "link", *files, "x.py"]
    assert list_project(tmp_path, "sub/deep") == files[2:]
    assert list_project(tmp_path, "gone") == []
    new = ["new.log", "sub/new.log", "sub/x.py", "sub/deep/x.py", "gone/y", "link/x.log", "é\udcff"]
    with ProjectTree(tmp_path) as tree:
        assert find_ignored(tree, new) == {"new.log", "sub/x.py", "gone/y"}


@pytest.mark.parametrize("parent", ["", "*", "project"])
def test_gitignore_counts_outside_of_repositories(tmp_path: Path, parent: str) -> None:
    if parent:  # such as a home directory in git, which ignores all but a few files
        run_git(tmp_path, "init", "-q")
        (tmp_path / ".gitignore").write_text(f"{parent}\n")
    project = tmp_path / "project"
    write_files(
        project, {".gitignore": "/a\n", "a": "", "d/.gitignore": "b\n", "d/b": "", "d/c": ""}
    )
    assert list_project(project) == [".gitignore", "d/.gitignore", "d/c"]
    with ProjectTree(project) as tree:
        assert find_ignored(tree, ["a", "d/b", "d/new"]) == {"a", "d/b"}


def test_rules_of_the_repository_above_count(tmp_path: Path) -> None:
    run_git(tmp_path, "init", "-q")
    write_files(tmp_path, {".gitignore": "*.log\n", "project/a.log": "", "project/b": ""})
    assert list_project(tmp_path / "project") == ["b"]


def test_configuration_of_a_repository_makes_git_run_no_program(tmp_path: Path) -> None:
    run_git(tmp_path, "init", "-q")
    ran = tmp_path.parent / f"{tmp_path.name}-ran"
    hook = tmp_path / "hook"
    hook.write_text(f"#!/bin/sh\ntouch {ran}\n")
    hook.chmod(0o755)
    run_git(tmp_path, "config", "core.fsmonitor", str(hook))
    assert list_project(tmp_path) == ["hook"]
    assert not ran.exists()


def test_variables_of_a_git_that_runs_danlu_do_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "other").mkdir()
    run_git(tmp_path / "other", "init", "-q")
    write_files(tmp_path, {"project/.gitignore": "a\n", "project/a": ""})
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other/.git"))
    assert list_project(tmp_path / "project") == [".gitignore"]


@pytest.mark.parametrize(
    ("files", "missing"),
    [
        ({".git/HEAD": ""}, "knows what .gitignore excludes"),
        ({".gitignore": "a\n"}, "knows what .gitignore excludes"),
        ({"d/e/.gitignore": "a\n"}, "d/e/.gitignore"),
        ({".danluignore": "a\r\n", "d/.gitignore": "b", "a": "", "d/b": ""}, ""),
    ],
)
def test_without_git_what_only_git_knows_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], missing: str
) -> None:
    write_files(tmp_path, files)
    monkeypatch.setenv("PATH", str(tmp_path))
    if missing:
        with pytest.raises(MachineError, match=missing) as caught:
            list_project(tmp_path)
        assert ".danluignore" in (caught.value.hint or "")
    else:
        assert "a" not in list_project(tmp_path)


@pytest.mark.parametrize(
    ("text", "lines"),
    [("\ufeffa\n", ["b"]), ("a\r\n", ["b"]), ("*\n!b\n", ["b"])],
)
def test_danluignore_has_the_syntax_of_gitignore(
    tmp_path: Path, text: str, lines: list[str]
) -> None:
    write_files(tmp_path, {".danluignore": text, "a": "", "b": ""})
    assert set(list_project(tmp_path)) - {".danluignore"} == set(lines)
    (tmp_path / ".danluignore").write_text("[[:digit:]]\n")
    with pytest.raises(UsageError, match=r"\[\[:digit:\]\]"):
        list_project(tmp_path)
