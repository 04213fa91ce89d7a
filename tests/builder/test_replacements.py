"""A copy may replace files of the image, but no link or directory."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from danlu.builder.embedded.collisions import reject_replacements
from danlu.errors import UsageError
from danlu.oci.digest import DiffId
from danlu.store import Layer

MakeLayer = Callable[[Mapping[str, str]], Layer]


@pytest.fixture
def make_layer(tmp_path: Path) -> MakeLayer:
    """Make a layer of files, and of links (``-> target``)."""
    layers: list[Layer] = []

    def make(files: Mapping[str, str]) -> Layer:
        tree = tmp_path / str(len(layers))
        for name, text in files.items():
            path = tree / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if text.startswith("-> "):
                path.symlink_to(text.removeprefix("-> "))
            else:
                path.write_text(text)
        layers.append(Layer(DiffId(f"sha256:{len(layers):064}"), 0, 0, "", tree))
        return layers[-1]

    return make


@pytest.fixture
def base(make_layer: MakeLayer) -> list[Layer]:
    system = {
        "usr/bin/sh": "",
        "bin": "-> usr/bin",
        "var/run": "-> /run",
        "run/lock/x": "",
        "etc/passwd": "root",
        "etc/localtime": "-> /usr/share/zoneinfo/UTC",
        "usr/share/zoneinfo/UTC": "",
    }
    return [make_layer(system), make_layer({"etc/hosts": ""})]


@pytest.mark.parametrize(
    ("path", "message", "hint"),
    [
        ("bin/tool", "/bin, which is a link to usr/bin", "copy to /usr/bin/ instead of /bin"),
        ("bin", "/bin, which is a link to usr/bin", "copy to /usr/bin/ instead of /bin"),
        ("etc/localtime", "", ""),
        ("var/run/a/b", "/var/run, which is a link to /run", "copy to /run/ instead of /var/run"),
        ("usr", "the directory /usr of the image with a file", "end the target with /"),
        ("etc/passwd/x", "the file /etc/passwd of the image with a directory", "another target"),
        ("etc/passwd", "", ""),
        ("etc/hosts", "", ""),
        ("usr/bin/tool", "", ""),
        ("opt/bin/tool", "", ""),
    ],
)
def test_links_and_directories_of_the_image_are_not_replaced(
    make_layer: MakeLayer, base: list[Layer], path: str, message: str, hint: str
) -> None:
    copy = make_layer({path: "new"})
    if not message:
        reject_replacements([copy], base)
        return
    with pytest.raises(UsageError) as caught:
        reject_replacements([copy], base)
    assert message in caught.value.message
    assert hint in caught.value.hint
