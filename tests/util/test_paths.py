from __future__ import annotations

from pathlib import Path

from danlu.util.paths import Paths


def test_danlu_home_moves_all_directories() -> None:
    paths = Paths.of({"DANLU_HOME": "/x", "XDG_DATA_HOME": "/y", "HOME": "/z"})
    for path in (paths.store, paths.cache, paths.logs, paths.config_file):
        assert path.is_relative_to("/x")


def test_xdg_directories_are_used_and_relative_ones_ignored() -> None:
    paths = Paths.of({"XDG_DATA_HOME": "/d", "XDG_CONFIG_HOME": "relative", "HOME": "/h"})
    assert paths.store == Path("/d/danlu/store")
    assert paths.config_file == Path("/h/.config/danlu/config.toml")
    assert paths.logs == Path("/h/.local/state/danlu/logs")
