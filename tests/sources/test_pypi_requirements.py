"""Requirements files are parsed like pip does, as far as danlu must."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.environment.types import PythonPackages
from danlu.errors import ResolveError, Span, UsageError
from danlu.sources.pypi.requirements import (
    declared_paths,
    parse_reference,
    read_requirements,
)

BASE = Path("/p")


def test_lines_are_joined_and_comments_dropped(tmp_path: Path) -> None:
    file = tmp_path / "r.txt"
    digest = "a" * 64
    file.write_text(
        "# comment\n\nnumpy \\\n  >=2  # why\n"
        f"six==1 --hash=sha256:{digest} \\\n   --hash sha256:{digest}\n"
        "url @ https://h/x#frag.whl\n"
    )
    entries = read_requirements(file, tmp_path)
    assert [(entry.value.split(), entry.line) for entry in entries] == [
        (["numpy", ">=2"], 3),
        (["six==1"], 5),
        (["url", "@", "https://h/x#frag.whl"], 7),
    ]
    assert entries[1].hashes == (f"sha256:{digest}",) * 2


@pytest.mark.parametrize(
    "line", ["-e .", "-e.", "--editable=.", "--editable .", "  -e  .  ", "-e\t.", '-e "."']
)
def test_every_spelling_of_editable_is_seen(tmp_path: Path, line: str) -> None:
    (tmp_path / "r.txt").write_text(line + "\n")
    (entry,) = read_requirements(tmp_path / "r.txt", tmp_path)
    assert (entry.option, entry.value) == ("--editable", ".")


def test_files_are_relative_to_their_file_and_packages_to_the_project(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "r.txt").write_text("-r sub/a.txt\n-c sub/c.txt\n./w.whl\n")
    (tmp_path / "sub" / "a.txt").write_text("six\n-c c.txt\n./pkg\n")
    (tmp_path / "sub" / "c.txt").write_text("six<2\n")
    names = ["pkg", "r.txt", "sub/a.txt", "sub/c.txt", "w.whl"]
    declared = [PythonPackages(requirements="r.txt")]
    assert declared_paths(declared, tmp_path) == tuple(tmp_path / name for name in names)


def test_a_file_that_includes_itself_is_refused_with_the_line(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "r.txt").write_text("-r sub/a.txt\n")
    (tmp_path / "sub" / "a.txt").write_text("six\n-r ../r.txt\n")
    with pytest.raises(ResolveError, match=r"r\.txt includes itself") as caught:
        read_requirements(tmp_path / "r.txt", tmp_path)
    assert caught.value.span == Span("sub/a.txt", 2)


def test_files_that_include_one_another_too_often_are_refused(tmp_path: Path) -> None:
    for number in range(30):
        (tmp_path / f"{number}.txt").write_text(f"-r {number + 1}.txt\n" * 2)
    (tmp_path / "30.txt").write_text("six\n")
    with pytest.raises(ResolveError, match="includes itself"):
        read_requirements(tmp_path / "0.txt", tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "r.txt").write_text("-r gone.txt\n")
    with pytest.raises(ResolveError, match=r"gone\.txt"):
        read_requirements(tmp_path / "r.txt", tmp_path)


@pytest.mark.parametrize(
    ("text", "kind", "name", "location"),
    [
        ("git+https://h/r.git@v1", "git", "", "https://h/r.git"),
        ("p @ git+ssh://git@h/r@main#subdirectory=x", "git", "p", "ssh://git@h/r"),
        ("git+https://h/r#egg=p", "git", "p", "https://h/r"),
        ("hg+https://h/r", "vcs", "", "https://h/r"),
        ("p @ https://h/p-1.tar.gz", "archive", "p", "https://h/p-1.tar.gz"),
        ("https://h/p-1-py3-none-any.whl", "wheel", "", "https://h/p-1-py3-none-any.whl"),
        ("./p", "directory", "", "./p"),
        (".", "directory", "", "."),
        (".[extra]", "directory", "", "."),
        ("p-1-py3-none-any.whl", "wheel", "", "p-1-py3-none-any.whl"),
        ("p-1.tar.gz", "archive", "", "p-1.tar.gz"),
        ("p @ file:///abs/p-1.zip", "archive", "p", "file:///abs/p-1.zip"),
    ],
)
def test_kinds_of_direct_references_are_distinguished(
    text: str, kind: str, name: str, location: str
) -> None:
    reference = parse_reference(text, BASE)
    assert reference is not None
    assert (reference.kind, reference.name, reference.location) == (kind, name, location)


@pytest.mark.parametrize(
    "text", ["numpy", "numpy>=2,<3", "torch==2.13.0+cpu", "a[b,c]~=1.0 ; python_version<'3'"]
)
def test_ordinary_requirements_are_not_direct_references(text: str) -> None:
    assert parse_reference(text, BASE) is None


def test_refs_subdirectories_and_markers_are_kept() -> None:
    reference = parse_reference(
        "p[x] @ git+https://u:p@h/r@feature#subdirectory=a/b ; os_name=='posix'", BASE
    )
    assert reference is not None
    assert (reference.reference, reference.subdirectory, reference.extras) == (
        "feature",
        "a/b",
        "[x]",
    )
    assert reference.location == "https://u:p@h/r"
    assert reference.marker == "os_name=='posix'"


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project next to files that are not its own, with a link to them."""
    (tmp_path / "home/lib").mkdir(parents=True)
    (tmp_path / "home/secret").write_text("root:x:0:0 top secret\n")
    (tmp_path / "home/a-1-py3-none-any.whl").write_text("wheel")
    project = tmp_path / "project"
    project.mkdir()
    (project / "dd").symlink_to(tmp_path / "home")
    return project


@pytest.mark.parametrize(
    "line",
    [
        *("-r ../home/secret", "-r dd/secret", "-c {home}/secret", "-e ../home/lib"),
        *("../home/lib", "dd/lib", "{home}/lib", "file://{home}/lib", "a @ file://{home}/lib"),
        *(
            "git+file://{home}/lib@v1",
            "a @ git+file://{home}/lib",
            "git+{home}/lib",
            "git+../home/x",
        ),
        *("dd/a-1-py3-none-any.whl", "../home/a-1-py3-none-any.whl", "../home/a.tar.gz"),
    ],
)
def test_a_requirements_file_includes_nothing_from_outside_the_project(
    project: Path, line: str
) -> None:
    line = line.format(home=project.parent / "home")
    (project / "r.txt").write_text(f"six\n{line}\n")
    with pytest.raises(UsageError, match=r"outside the project|leads out") as caught:
        declared_paths([PythonPackages(requirements="r.txt")], project)
    assert caught.value.span == Span("r.txt", 2)
    assert "secret" not in "".join([caught.value.source_line, *caught.value.details])


@pytest.mark.parametrize(
    "name", ["../home/lib", "dd/lib", "-e dd/lib", "./dd/a-1-py3-none-any.whl"]
)
def test_a_requirement_refers_to_nothing_outside_the_project(project: Path, name: str) -> None:
    span = Span("build.envd", 2)
    with pytest.raises(UsageError, match=r"outside the project|leads out") as caught:
        declared_paths([PythonPackages((name,), span=span)], project)
    assert caught.value.span == span


def test_requirements_through_a_link_inside_the_project_are_read(project: Path) -> None:
    (project / "common").mkdir()
    (project / "common/r.txt").write_text("six\n./lib\n")
    (project / "env").mkdir()
    (project / "env/r.txt").symlink_to("../common/r.txt")
    entries = read_requirements(project / "env/r.txt", project)
    assert [entry.value for entry in entries] == ["six", "./lib"]


@pytest.mark.parametrize(
    "line",
    ["git+https://h/r@v1", "git+ssh://git@h/r", "git+git@h:team/r", "git+file://{project}/lib"],
)
def test_repositories_of_servers_and_of_the_project_are_taken(project: Path, line: str) -> None:
    (project / "r.txt").write_text(line.format(project=project))
    declared = [PythonPackages(requirements="r.txt")]
    assert declared_paths(declared, project) == (project / "r.txt",)
