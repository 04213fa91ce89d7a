"""Which layers of an image get bytecode: unmodified packages of its Python."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.oci.digest import DiffId, Digest
from danlu.sandbox.launcher.bytecode_layers import find_wheel_layers
from danlu.store import Layer, StoredImage

SITE = "lib/python3.11/site-packages"


def make_layer(root: Path, name: str, site: str) -> Layer:
    tree = root / name
    (tree / site / f"{name}-1.dist-info").mkdir(parents=True)
    (tree / site / name).mkdir()
    return Layer(DiffId("sha256:" + name * 8), 1, 1, name, tree)


@pytest.mark.parametrize(
    ("python", "expected"),
    [
        ("/opt/conda/bin/python3.11", ["wheels", "pandas"]),
        ("/usr/bin/python3.11", ["wheels"]),
    ],
)
def test_conda_packages_count_if_the_python_is_condas(
    tmp_path: Path, python: str, expected: list[str]
) -> None:
    stack = [
        make_layer(tmp_path, "pandas", f"opt/conda/{SITE}"),
        make_layer(tmp_path, "wheels", f"opt/venv/{SITE}"),
    ]
    metadata = {"python": python, "prefix": "/opt/venv", "site_packages": SITE}
    image = StoredImage(
        Digest("sha256:0"), b"", tuple(layer.diff_id for layer in stack), metadata=metadata
    )
    assert [layer.created_by for layer in find_wheel_layers(image, stack)] == expected
