"""pip's and uv's configuration on this machine, read like the programs do."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from danlu.sandbox import pip_uv_config
from danlu.sandbox.pip_uv_config import (
    locate_pip_options,
    read_pip_options,
    read_uv_settings,
)


class ConfigDirectories:
    """Directories in which pip and uv look for files, and an environment that names them."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.environ = {
            "HOME": str(root / "home"),
            "VIRTUAL_ENV": str(root / "venv"),
            "XDG_CONFIG_DIRS": f"{root}/first:{root}/second",
        }

    def give(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def pip(self, **more: str) -> dict[str, str]:
        return read_pip_options({**self.environ, **more})

    def uv(self, project: Path | None = None, **more: str) -> dict[str, object]:
        return read_uv_settings({**self.environ, **more}, project)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ConfigDirectories:
    monkeypatch.setattr(pip_uv_config, "_ETC", tmp_path / "etc")
    return ConfigDirectories(tmp_path)


#: pip's files, the weakest first ("Configuration", location and precedence).
PIP_FILES = (
    "first/pip/pip.conf",
    "second/pip/pip.conf",
    "etc/pip.conf",
    "home/.pip/pip.conf",
    "home/.config/pip/pip.conf",
    "venv/pip.conf",
)


def test_more_important_pip_file_wins(machine: ConfigDirectories) -> None:
    for name in PIP_FILES:
        machine.give(name, f"[global]\nindex-url = {name}\n")
        assert machine.pip()["index-url"] == name


def test_pip_config_file_replaces_the_users_file(machine: ConfigDirectories) -> None:
    for number, name in enumerate(PIP_FILES):
        machine.give(name, f"[global]\nindex-url = {name}\nretries = {number}\n")
    (machine.root / "venv/pip.conf").unlink()
    named = machine.give("named.conf", "[global]\nindex-url = named\n")
    result = machine.pip(PIP_CONFIG_FILE=str(named))
    assert (result["index-url"], result["retries"]) == ("named", "2")
    assert "index-url" not in machine.pip(PIP_CONFIG_FILE=os.devnull)


def test_install_section_wins_and_variables_win_over_it(machine: ConfigDirectories) -> None:
    machine.give("etc/pip.conf", "[install]\nindex-url = b\n")
    machine.give(
        "venv/pip.conf", "[global]\nindex_url = a\ndefault-timeout = 7\n[list]\nformat = x\n"
    )
    assert machine.pip() == {"index-url": "b", "timeout": "7"}
    result = machine.pip(PIP_INDEX_URL="c", PIP_DEFAULT_TIMEOUT="9", PIP_RETRIES="")
    assert result == {"index-url": "c", "timeout": "9"}


def test_uv_files_are_merged_like_uv_does(machine: ConfigDirectories) -> None:
    project = machine.root / "team/project"
    machine.give("etc/uv/uv.toml", 'index-url = "etc"\n')
    assert machine.uv() == {"index-url": "etc"}
    machine.give("second/uv/uv.toml", 'index-url = "second"\nextra-index-url = ["second"]\n')
    machine.give("home/.config/uv/uv.toml", 'extra-index-url = ["user"]\noffline = false\n')
    machine.give("team/project/pyproject.toml", '[project]\nname = "no settings of uv"\n')
    machine.give("team/pyproject.toml", '[tool.uv.pip]\nextra-index-url = ["pip"]\n')
    assert machine.uv(project) == {
        "index-url": "second",
        "extra-index-url": [str(machine.root / "team/pip"), "user", "second"],
        "offline": False,
    }
    machine.give("team/uv.toml", 'index-url = "team"\n')
    assert machine.uv(project)["extra-index-url"] == ["user", "second"]
    assert machine.uv(project)["index-url"] == str(machine.root / "team/team")


def test_uv_config_file_replaces_others_and_no_config_disables_all(
    machine: ConfigDirectories,
) -> None:
    machine.give("home/.config/uv/uv.toml", 'index-url = "user"\n')
    named = machine.give("named.toml", "no-index = true\n")
    assert machine.uv(UV_NO_CONFIG="0") == {"index-url": "user"}
    assert machine.uv(UV_NO_CONFIG="1") == {}
    assert machine.uv(UV_NO_CONFIG="1", UV_CONFIG_FILE=str(named)) == {"no-index": True}


def test_system_files_of_uv_can_be_ignored(machine: ConfigDirectories) -> None:
    machine.give("etc/uv/uv.toml", 'index-url = "etc"\n')
    machine.give("home/.config/uv/uv.toml", "offline = true\n")
    assert machine.uv(UV_NO_SYSTEM_CONFIG="1") == {"offline": True}


def test_addresses_in_files_of_a_project_are_relative_to_them(machine: ConfigDirectories) -> None:
    machine.give(
        "team/pyproject.toml",
        '[tool.uv]\nindex = [{ url = "simple" }, { url = "https://one.test" }]\n'
        '[tool.uv.pip]\nfind-links = ["../wheels", "https://two.test"]\n',
    )
    team = machine.root / "team"
    assert machine.uv(team / "project") == {
        "index": [{"url": f"{team}/simple"}, {"url": "https://one.test"}],
        "find-links": [f"{team}/../wheels", "https://two.test"],
    }


def test_options_of_pip_are_located(machine: ConfigDirectories) -> None:
    file = machine.give("etc/pip.conf", "[global]\nconstraint = limits.txt\nretries = 3\n")
    assert locate_pip_options({**machine.environ, "PIP_RETRIES": "4"}) == {
        "constraint": ("limits.txt", str(file)),
        "retries": ("4", "PIP_RETRIES"),
    }


#: Says which parsers are loaded after both configurations were read.
LOADED = """
import os, pathlib, sys
from danlu.sandbox import pip_uv_config
pip_uv_config._ETC = pathlib.Path("/nowhere")
pip_uv_config.read_pip_options(os.environ)
pip_uv_config.read_uv_settings(os.environ)
print(sorted({"configparser", "tomllib"} & sys.modules.keys()))
"""


def test_no_parser_is_loaded_without_files(machine: ConfigDirectories) -> None:
    result = subprocess.run(
        [sys.executable, "-c", LOADED], env=machine.environ, capture_output=True, text=True
    )
    assert result.stdout == "[]\n", result.stderr
