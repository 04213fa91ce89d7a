"""The mirrors of apt that an environment gets."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import anyio
import pytest

from danlu.engine.apt_sources import create_apt_sources, mount_apt_sources
from danlu.sandbox.layer_view import LayerView
from danlu.util.config import Configuration, MirrorConfig


def make_image(directory: Path) -> LayerView:
    """Return an image of Debian with apt and no sources."""
    tree = directory / "tree"
    (tree / "usr/bin").mkdir(parents=True)
    (tree / "usr/bin/apt-get").touch()
    (tree / "etc").mkdir()
    (tree / "etc/os-release").write_text("ID=debian\nVERSION_CODENAME=bookworm\n")
    return LayerView([tree])


def test_apt_sources_of_an_environment_contain_no_password_and_no_missing_keyring(
    tmp_path: Path,
) -> None:
    urls = ("https://me:hunter2@mirror.example/debian",)
    config = Configuration(mirrors={"debian": MirrorConfig(urls)})
    mount, _ = anyio.run(mount_apt_sources, make_image(tmp_path), config, tmp_path)
    assert mount.source is not None
    text = mount.source.read_text()
    assert "https://mirror.example/debian" in text
    assert "hunter2" not in text
    assert "Signed-By" not in text


@pytest.mark.real
def test_apt_says_how_to_get_the_lists_that_an_image_does_not_have(tmp_path: Path) -> None:
    mounts = create_apt_sources(make_image(tmp_path), tmp_path)
    (config,) = [mount for mount in mounts if "apt.conf.d" in mount.target]
    assert config.source is not None
    lists = tmp_path / "lists"
    lists.mkdir()
    # The hook looks where an environment has them.
    hook = config.source.read_text().replace("/var/lib/apt/lists", str(lists))
    config.source.write_text(f'{hook}Dir::State::Lists "{lists}";\nDir::Etc::Parts "/absent";\n')

    def install() -> str:
        words = ["apt-get", "--simulate", "install", "no-such-package"]
        environ = {**os.environ, "APT_CONFIG": str(config.source), "LC_ALL": "C"}
        done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 100
        assert "Unable to locate package no-such-package" in done.stderr
        return done.stderr

    assert "hint: there are no package lists yet: run `apt-get update`" in install()
    (lists / "mirror_debian_dists_bookworm_main_Packages.lz4").touch()
    assert "hint" not in install()
