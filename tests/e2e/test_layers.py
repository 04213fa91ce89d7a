"""Layers that a change adds to an image, and layers that it reuses."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
import tarfile
from contextlib import closing
from pathlib import Path

import pytest

from danlu.oci.layout import read_layout
from tests.e2e.conftest import Project
from tests.fakes.wheels import make_wheel

pytestmark = pytest.mark.real

WORKLOAD = ['install.apt_packages(["git"])', 'install.python(version="3.11")']


def packages(*names: str) -> str:
    return f"install.python_packages(name={list(names)!r})"


def test_one_package_more_is_one_layer_more_of_its_size(project: Project) -> None:
    project.write(*WORKLOAD, packages("numpy", "six"))
    before = project.build()
    project.write(*WORKLOAD, packages("numpy", "six", "tqdm"))
    after = project.build()
    kept = [layer["diff_id"] for layer in before["image"]["layers"]]
    now = [layer["diff_id"] for layer in after["image"]["layers"]]
    assert [layer for layer in now if layer in kept] == kept
    added = [layer for layer in after["image"]["layers"] if layer["diff_id"] not in kept]
    assert len(added) == 1
    assert "tqdm" in added[0]["created_by"]
    result = [vertex["name"] for vertex in after["vertices"] if not vertex["cached"]]
    # Another test may have made its layer already: one store serves all projects.
    assert {name.split()[0] for name in result} <= {"tqdm"}


def test_manifests_share_every_other_layer_descriptor(project: Project) -> None:
    out = project.directory / "out"
    manifests = []
    for names in (("numpy", "six"), ("numpy", "six", "tqdm")):
        project.write(*WORKLOAD, packages(*names))
        report = project.build("-o", f"type=dir,dest={out}")
        digest = report["image"]["digest"].removeprefix("sha256:")
        manifests.append(json.loads((out / "blobs/sha256" / digest).read_text())["layers"])
    added = [layer for layer in manifests[1] if layer not in manifests[0]]
    assert [layer for layer in manifests[1] if layer in manifests[0]] == manifests[0]
    assert len(added) == 1
    assert added[0]["size"] < 200_000


@pytest.mark.slow
def test_apt_and_wheels_overlap_in_time(project: Project) -> None:
    project.write('install.apt_packages(["bsdextrautils"])', packages("more-itertools"))
    result = project("build", "--no-cache", "--progress", "json")
    text = result.stderr if '"started"' in result.stderr.lower() else result.stdout
    events = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
    spans: dict[str, list[float]] = {}
    for event in events:
        if event.get("type", "").lower() in ("started", "finished"):
            spans.setdefault(event["name"], []).append(event["time"])
    apt = next(times for name, times in spans.items() if name.startswith("apt"))
    wheel = next(times for name, times in spans.items() if name.startswith("more-itertools"))
    assert wheel[0] < apt[1]


def test_an_unchanged_build_runs_nothing(project: Project) -> None:
    project.write(*WORKLOAD, packages("six"))
    first = project.build()
    second = project.build()
    assert second["image"]["config"] == first["image"]["config"]
    assert second["vertices"] == []


def test_a_comment_changes_nothing(project: Project) -> None:
    project.write(*WORKLOAD, packages("six"))
    first = project.build()
    file = project.directory / "build.envd"
    file.write_text("# a comment\n\n" + file.read_text())
    lock = (project.directory / "danlu.lock").read_text()
    assert project.build()["image"]["config"] == first["image"]["config"]
    assert (project.directory / "danlu.lock").read_text() == lock


def test_adding_a_package_keeps_the_locked_versions_of_the_others(project: Project) -> None:
    project.write(*WORKLOAD, packages("six==1.16.0"))
    project("lock")
    project.write(*WORKLOAD, packages("six", "tqdm"))
    project("lock")
    assert '"six-1.16.0' in (project.directory / "danlu.lock").read_text()
    project("lock", "--upgrade", "six")
    assert '"six-1.16.0' not in (project.directory / "danlu.lock").read_text()


def test_bytecode_is_a_last_layer_that_is_the_same_each_time(
    project: Project, real_home: Path, tmp_path: Path
) -> None:
    project.write('install.python_packages(name=["six", "attrs"])')
    plain = project("build", "-t", "uncompiled:1", "-o", f"type=tar,dest={tmp_path}/plain.tar")
    assert "note: the image has no bytecode" in plain.stderr
    assert not list_bytecode(tmp_path / "plain.tar")
    output = f"type=tar,dest={tmp_path}/with.tar"
    report = project.build("-t", "compiled:1", "--bytecode", "-o", output)["image"]
    assert report["layers"][-1]["created_by"] == "bytecode of the Python packages"
    compiled = list_bytecode(tmp_path / "with.tar")
    assert {"six", "attr/_make"} <= compiled.keys()
    assert set(compiled.values()) == {0}, "timestamps (PEP 552)"
    # Compiled again from nothing, for the image that was built without it.
    with closing(sqlite3.connect(real_home / "store/index.sqlite")) as index, index:
        assert index.execute("DELETE FROM records WHERE key LIKE 'bytecode%'").rowcount
    saved = project(
        "image", "save", "uncompiled:1", "--bytecode", "-o", f"type=oci,dest={tmp_path}/oci"
    )
    assert "note:" not in saved.stderr
    (image,) = read_layout(tmp_path / "oci")
    assert image.image.digest == report["config"]


def list_bytecode(archive: Path) -> dict[str, int]:
    """Return the flags of each compiled module of the environment's packages."""
    with tarfile.open(archive) as files:
        return {
            match[1].replace("__pycache__/", ""): content.read(8)[4]
            for member in files
            if (
                match := re.fullmatch(
                    r"opt/venv/lib/python3\.11/site-packages/(.+)\.\w+-311\.pyc", member.name
                )
            )
            and (content := files.extractfile(member)) is not None
        }


def test_a_package_that_a_step_replaced_or_removed_is_imported_as_the_image_has_it(
    project: Project, tmp_path: Path
) -> None:
    (project.directory / "wheels").mkdir()
    old, new = (
        make_wheel(
            project.directory / "wheels", "tool", version, {"tool/__init__.py": f"V = '{version}'"}
        )
        for version in ("1.0", "2.0")
    )
    packages_of_image = f'install.python_packages(local_wheels=["wheels/{old.name}"])'
    load = ["python", "-Bc", "import tool; print(tool.V, tool.__cached__)"]
    project.write(packages_of_image)
    project.build("--bytecode", "-o", f"type=oci,dest={tmp_path}/first")  # compiles it
    assert project.run(*load).startswith("1.0")

    # An edit in a container, of the same size.
    edit = "sed -i s/1.0/1.5/ /opt/venv/lib/python3.11/site-packages/tool/__init__.py"
    assert project.run("sh", "-c", f"{edit} && {shlex.join(load)}").startswith("1.5")

    for command, expected in (
        (f"pip install --no-index wheels/{new.name}", "2.0"),
        (edit, "1.5"),
        ("pip uninstall -y tool", "No module named 'tool'"),
    ):
        project.write(
            packages_of_image, 'io.copy("wheels", "/wheels/")', f'run(["cd / && {command}"])'
        )
        project.build("-t", "changed:1")
        seen = [project("run", "--", *load, check=False)]
        project("image", "save", "changed:1", "-o", f"{tmp_path}/changed.tar", "--bytecode")
        project("image", "load", f"{tmp_path}/changed.tar", "-t", "loaded:1")
        seen += [
            project("run", "--", *load, check=False),
            project("run", "--image", "loaded:1", "--", *load, check=False),
        ]
        for result in seen:
            assert expected in result.stdout + result.stderr, command


def test_bytecode_needs_something_to_compile(project: Project) -> None:
    project.write()
    result = project("build", "--bytecode", "-o", "type=oci,dest=../oci", check=False)
    assert (result.returncode, result.stdout) == (2, "")
    assert "the image has no Python packages to compile" in result.stderr
