"""A cell in an environment with other versions than the notebook has."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from danlu.notebook.bundle import CellBundle
from tests.replica_runtime.bundles import run, write_cell_bundle


def change_manifest(directory: Path, **changes: object) -> None:
    file = directory / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def test_python_version_conflict_is_found_before_unpickling(notebook: Path) -> None:
    bundle = write_cell_bundle(
        notebook, "print('never')\n", variables={"f": lambda: 1, "plain": [1]}
    )
    change_manifest(bundle.directory, python="2.9.1")
    (bundle.directory / "values" / "f.pickle").write_bytes(b"no pickle")
    result = run(bundle)
    here = ".".join(map(str, sys.version_info[:3]))
    assert (result.code, result.out) == (1, "")
    assert result.err == (
        "danlu: cannot send f between different versions\n"
        f"  Python: 2.9.1 in the notebook, {here} in the job's environment\n"
        "hint: use an environment with the notebook's versions,"
        " or send plain numbers, strings and lists\n"
    )
    assert result.raised["refused"]


def test_plain_values_are_readable_by_another_python(notebook: Path) -> None:
    bundle = write_cell_bundle(
        notebook, "print(x)\n", variables={"x": {"a": [1, 2.0, None, {"s"}]}}
    )
    change_manifest(bundle.directory, python="3.99.0")
    assert run(bundle).out == "{'a': [1, 2.0, None, {'s'}]}\n"


def test_library_version_conflict_names_the_library(notebook: Path, tmp_path: Path) -> None:
    library(tmp_path / "here", "2.1.0")
    library(tmp_path / "there", "1.26.4")
    bundle = made_by("import lib8a\nx = lib8a.Box()", notebook, tmp_path / "here")
    for result, expected in (("here", "box\n"), ("there", "")):
        outcome = run(bundle, environ={"PYTHONPATH": str(tmp_path / result / "site-packages")})
        assert outcome.out == expected
    assert "  lib8a: 2.1.0 in the notebook, 1.26.4 in the job's environment\n" in outcome.err
    absent = run(bundle)
    assert "  lib8a: 2.1.0 in the notebook, not installed in the job" in absent.err


def library(place: Path, version: str) -> None:
    """A distribution ``lib8a``, installed below ``place/site-packages``."""
    site = place / "site-packages"
    (site / f"lib8a-{version}.dist-info").mkdir(parents=True)
    output = f"Metadata-Version: 2.1\nName: lib8a\nVersion: {version}\n"
    (site / f"lib8a-{version}.dist-info" / "METADATA").write_text(output)
    (site / "lib8a.py").write_text("class Box:\n    def __str__(self): return 'box'\n")


def made_by(code: str, notebook: Path, place: Path) -> CellBundle:
    """The bundle that a process with the library of ``place`` makes, and sends ``x``."""
    program = (
        f"{code}\nimport pathlib, sys\n"
        "from tests.replica_runtime.bundles import write_cell_bundle\n"
        f"write_cell_bundle(pathlib.Path({str(notebook)!r}), 'print(x)\\n', variables={{'x': x}})\n"
    )
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(place / "site-packages"), str(root), *sys.path])
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": paths},
    )
    return CellBundle(notebook.with_name("sent"))


def test_value_with_a_missing_module_is_an_error(notebook: Path) -> None:
    bundle = write_cell_bundle(notebook, "print(x)\n", variables={"x": 1})
    (bundle.directory / "values" / "x.pickle").write_bytes(b"cno_such_module\nBox\n.")
    result = run(bundle)
    assert result.code == 1
    assert "cannot load x in the job's environment" in result.err
    assert "ModuleNotFoundError: No module named 'no_such_module'" in result.err
