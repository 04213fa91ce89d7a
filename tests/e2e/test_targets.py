"""A build function that copies files of another one's result."""

from __future__ import annotations

import tomllib

import pytest

from tests.e2e.conftest import Project
from tests.fakes.wheels import make_wheel

pytestmark = pytest.mark.real

FILE = """\
def compiler():
    base(os="debian12")
    io.copy("source.txt", "/src/")
    run(["mkdir /out", "cut -c1-3 /src/source.txt > /out/result.txt"])

def unused():
    base(image="localhost:1/never/fetched:1")
    run(["false"])

def build():
    base(os="debian12")
    io.copy("/out/*.txt", "/opt/", source=compiler)
    run(["cp /opt/result.txt /opt/copy.txt"])
"""
COMPILE = "compiler: run mkdir /out …"
COPY = "copy /out/*.txt of compiler to /opt/"
LAST = "run cp /opt/result.txt /opt/copy.txt"


def build_steps(project: Project, *arguments: str) -> set[str]:
    """Build, and return the names of the vertices that were not cached."""
    vertices = project.build(*arguments)["vertices"]
    return {vertex["name"] for vertex in vertices if not vertex["cached"]}


def test_copies_from_another_function_rebuild_what_changed(project: Project) -> None:
    (project.directory / "build.envd").write_text(FILE)
    source = project.directory / "source.txt"
    source.write_text("one 1\n")
    first = project.build()
    assert {COMPILE, COPY, LAST} <= {vertex["name"] for vertex in first["vertices"]}
    assert project.run("sh", "-c", "cat /opt/copy.txt; ls -A /opt; ls -d /src /out || true") == (
        "one\ncopy.txt\nresult.txt"
    )
    lock = tomllib.loads((project.directory / "danlu.lock").read_text())
    assert set(lock["function"]) == {"build", "compiler"}
    assert "up to date" in project("build").stderr

    # The compiler's result changes, but not the file that is copied.
    source.write_text("one 2\n")
    assert {COMPILE, COPY} <= (second := build_steps(project, "--frozen"))
    assert LAST not in second
    assert project.build()["image"]["config"] == first["image"]["config"]

    source.write_text("two\n")
    assert {COMPILE, COPY, LAST} <= build_steps(project, "--frozen")
    assert project.run("cat", "/opt/copy.txt") == "two"
    # Its own image is made of the same layers.
    assert build_steps(project, "--frozen", "-f", "build.envd:compiler") == set()


def test_missing_files_of_a_result_have_the_line_of_the_copy(project: Project) -> None:
    (project.directory / "build.envd").write_text(FILE.replace("/out/*.txt", "/out/*.whl"))
    (project.directory / "source.txt").write_text("one\n")
    result = project("build", check=False)
    assert result.returncode == 2
    assert "/out/*.whl not found in the image" in result.stderr
    assert "build.envd:12" in result.stderr


def test_each_function_has_its_own_package_index(project: Project) -> None:
    links = project.directory / "wheels"
    links.mkdir()
    make_wheel(links, "only-here", files={"only_here.py": "value = 42"})
    (project.directory / "build.envd").write_text(
        """\
def library():
    base(os="debian12")
    install.python_packages(["--find-links wheels", "only-here"])

def build():
    base(os="debian12")
    install.python_packages(["packaging"])
    io.copy("/opt/venv/lib/python3.11/site-packages/only_here.py", "/opt/", source=library)
"""
    )
    project("build")
    listing = project.run("sh", "-c", "cat /opt/only_here.py; python -m pip list --format freeze")
    assert "value = 42" in listing
    assert "packaging==" in listing
    assert "only-here==" not in listing


def test_functions_of_a_file_keep_the_versions_of_one_another(project: Project) -> None:
    text = """\
def development():
    base(os="debian12")
    install.python_packages(["packaging<24"])

def build():
    base(os="debian12")
    install.python_packages(["packaging"])
    io.copy("/etc/hostname", "/opt/", source=development)
"""
    file = project.directory / "build.envd"
    file.write_text(text)
    project("lock", "-f", "build.envd:development")
    file.write_text(text.replace("<24", ""))
    project("lock", "-f", "build.envd:development")
    project("lock")
    functions = tomllib.loads((project.directory / "danlu.lock").read_text())["function"]
    versions = [
        package["version"]
        for name in ("build", "development")
        for package in functions[name]["packages"]
        if package["name"] == "packaging"
    ]
    assert versions[0] == versions[1]
    assert versions[0].startswith("23.")
    assert functions["build"]["base"] == functions["development"]["base"]
