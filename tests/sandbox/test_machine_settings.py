"""The table of decisions knows every setting of the programs that are installed."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from danlu.sandbox.machine_settings import (
    MACHINE_SETTINGS,
    iter_settings,
    keeps_variable,
)
from danlu.sources.pypi.uv import find_uv


def run_uv(*arguments: str) -> str:
    done = subprocess.run([str(find_uv()), *arguments], capture_output=True, text=True)
    return done.stdout + done.stderr


@pytest.mark.parametrize("table", ["", "[pip]\n"])
def test_every_setting_of_uvs_files_has_a_decision(tmp_path: Path, table: str) -> None:
    file = tmp_path / "uv.toml"
    file.write_text(f"{table}unknown = 1\n")
    message = run_uv("pip", "compile", "--config-file", str(file), "-")
    known = set(re.findall(r"`([a-z-]+)`", message.partition("expected one of")[2]))
    assert len(known) > 40
    listed = {name for setting in MACHINE_SETTINGS for name in setting.uv}
    assert known - listed - {"pip"} == set()


@pytest.mark.parametrize("command", ["compile", "install"])
def test_every_variable_of_uvs_help_has_a_decision(command: str) -> None:
    text = run_uv("pip", command, "--help")
    known = set(re.findall(r"env:\s+[`\"]?(UV_[A-Z_]+)", text))
    assert len(known) > 25
    listed = {name for setting in MACHINE_SETTINGS for name in setting.variables}
    assert known - listed == set()


def test_every_option_of_pip_install_has_a_decision() -> None:
    pytest.importorskip("pip")
    command = [sys.executable, "-m", "pip", "install", "--help"]
    text = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"^  (?:-\w, )?--([a-z0-9-]+)", text, re.MULTILINE))
    assert len(known) > 50
    listed = {name for setting in MACHINE_SETTINGS for name in setting.pip}
    assert known - listed - {"help", "version"} == set()


def test_no_name_has_two_decisions() -> None:
    decisions: dict[str, set[str]] = {}
    for setting in MACHINE_SETTINGS:
        for kind in ("pip", "uv", "variables"):
            for name in getattr(setting, kind):
                decisions.setdefault(f"{kind} {name}", set()).add(setting.decision)
    assert [name for name, found in decisions.items() if len(found) > 1] == []


def test_an_unknown_variable_of_pip_or_uv_reaches_nothing() -> None:
    assert not keeps_variable("UV_OF_TOMORROW", {"resolving", "fetching"})
    assert not keeps_variable("PIP_OF_TOMORROW", {"resolving", "fetching"})
    assert keeps_variable("UV_INDEX_MINE_PASSWORD", {"fetching"})
    assert keeps_variable("HOME", {"fetching"})
    assert not keeps_variable("PYTHONPATH", {"fetching"})


def test_settings_are_selected_by_decision_and_sandbox() -> None:
    assert list(iter_settings()) == list(MACHINE_SETTINGS)
    assert {setting.decision for setting in iter_settings({"fetching"})} == {"fetching"}
    assert {setting.decision for setting in iter_settings({"fetching", "building"})} == {
        *("fetching", "building"),
    }
    steps = list(iter_settings(sandbox="steps"))
    assert 0 < len(steps) < len(MACHINE_SETTINGS)
    assert all("steps" in setting.sandboxes for setting in steps)


def test_a_setting_is_known_by_the_option_of_pip_or_uv() -> None:
    names = {setting.name for setting in MACHINE_SETTINGS}
    assert {"constraint", "index-url", "no-deps"} <= names
    assert all(names)
