"""The mirrors of apt that an environment gets."""

from __future__ import annotations

from pathlib import Path

import anyio

from danlu.engine.apt_sources import mount_apt_sources
from danlu.sandbox.layer_view import LayerView
from danlu.util.config import Configuration, MirrorConfig


def test_apt_sources_of_an_environment_contain_no_password_and_no_missing_keyring(
    tmp_path: Path,
) -> None:
    tree = tmp_path / "tree"
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/apt-get").touch()
    (tree / "etc").mkdir()
    (tree / "etc/os-release").write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
    urls = ("https://me:hunter2@mirror.example/debian",)
    config = Configuration(mirrors={"debian": MirrorConfig(urls)})
    (mount,) = anyio.run(mount_apt_sources, LayerView([tree]), config, tmp_path)
    assert mount.source is not None
    text = mount.source.read_text()
    assert "https://mirror.example/debian" in text
    assert "hunter2" not in text
    assert "Signed-By" not in text
