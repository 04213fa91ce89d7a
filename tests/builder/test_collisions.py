"""Two wheels with the same path: the same content is allowed, different content is an error."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from danlu.builder.embedded.collisions import reject_collisions
from danlu.errors import ResolveError
from danlu.oci.digest import DiffId
from danlu.sources.pypi.dist_info import RecordRow, write_record
from danlu.store import Layer

SITE = "opt/venv/lib/python3.11/site-packages"


def fill(tree: Path, name: str, files: Mapping[str, str]) -> None:
    """Create the files of a wheel in site-packages, with its RECORD."""
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    rows = [RecordRow(path) for path in (*files, f"{info}/RECORD")]
    for path, text in {**files, f"{info}/RECORD": write_record(rows).decode()}.items():
        directory = tree / SITE / path
        directory.parent.mkdir(parents=True, exist_ok=True)
        directory.write_text(text)


@pytest.fixture
def layer(tmp_path: Path) -> LayerFactory:
    return LayerFactory(tmp_path)


class LayerFactory:
    """Makes layers, each of one or more packages."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.count = 0

    def __call__(self, **packages: Mapping[str, str]) -> Layer:
        self.count += 1
        tree = self.root / str(self.count)
        for name, files in packages.items():
            fill(tree, name, files)
        made_by = ", ".join(f"{name} 1.0" for name in packages)
        return Layer(DiffId(f"sha256:{self.count:064}"), 0, 0, made_by, tree)


def test_equal_files_do_not_collide(layer: LayerFactory) -> None:
    shared = {"nvidia/__init__.py": "", "nvidia/one/lib.so": "x"}
    reject_collisions([layer(a=shared), layer(b=shared), layer(c={"c.py": ""})])


def test_collision_names_packages_and_path(layer: LayerFactory) -> None:
    one = layer(left={"deep/er/x.py": "1", "left.py": ""})
    other = layer(right={"deep/er/x.py": "2", "right.py": ""})
    with pytest.raises(ResolveError) as caught:
        reject_collisions([one, layer(same={"deep/er/y.py": ""}), other])
    expected = f"packages left and right both contain /{SITE}/deep/er/x.py, with different content"
    assert caught.value.message == expected


def test_a_script_that_two_packages_have_is_found(layer: LayerFactory) -> None:
    layers = [layer(a={"../../../bin/tool": "1"}), layer(b={"../../../bin/tool": "2"})]
    with pytest.raises(ResolveError, match="a and b both contain /opt/venv/bin/tool"):
        reject_collisions(layers)


def test_a_file_where_another_has_a_directory_is_a_collision(layer: LayerFactory) -> None:
    layers = [layer(a={"x": "file"}), layer(b={"x/y.py": ""})]
    with pytest.raises(ResolveError, match=f"a and b both contain /{SITE}/x"):
        reject_collisions(layers)


def test_collision_in_a_squashed_layer_names_the_package(layer: LayerFactory) -> None:
    group = layer(**{"first": {"first.py": ""}, "with-dash": {"x.py": "1"}, "last": {"l.py": ""}})
    with pytest.raises(ResolveError, match="packages with-dash and alone both contain"):
        reject_collisions([group, layer(alone={"x.py": "2"})])


def test_texts_for_people_next_to_the_packages_do_not_collide(layer: LayerFactory) -> None:
    names = ("README.md", "LICENSE", "license.txt", "CHANGELOG.rst")
    reject_collisions([layer(a=dict.fromkeys(names, "1")), layer(b=dict.fromkeys(names, "2"))])
    for path in ("tests/README.md", "readme.py", "../../../LICENSE"):
        with pytest.raises(ResolveError, match="both contain"):
            reject_collisions([layer(a={path: "1"}), layer(b={path: "2"})])
