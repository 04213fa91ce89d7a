"""Each setting of pip and uv ends up where the table says, in each spelling."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

import pytest

from danlu.sandbox.machine_settings import WHEN_LOCKED, WHEN_LOCKING
from danlu.sandbox.pip_indexes import passed_variables
from danlu.sources.pypi.indexes import IndexSettings, select_uv_settings, uv_environment
from danlu.sources.pypi.restrictions import read_restrictions
from danlu.sources.pypi.sdist_build import sandbox_indexes
from tests.fakes.package_settings import SettingCase, list_cases, write_setting_files


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The home directory of a machine without any configuration."""
    for name in list(os.environ):
        proxies = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
        programs = ("PIP_", "UV_", "SSL_", "XDG_", "VIRTUAL_ENV", "CONDA_", "PYTHON", "HTTP_T")
        if name.startswith(programs) or name.lower() in proxies:
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(tmp_path / "system"))
    monkeypatch.setattr("danlu.sandbox.pip_uv_config._ETC", tmp_path / "etc")
    monkeypatch.setattr("sys.prefix", str(tmp_path / "venv"))
    write_setting_files(tmp_path / "files")
    (tmp_path / ".config/pip").mkdir(parents=True)
    (tmp_path / ".config/uv").mkdir()
    return tmp_path


@pytest.mark.parametrize("case", list_cases(), ids=lambda case: case.id)
def test_a_setting_ends_up_where_the_table_says(
    machine: Path, monkeypatch: pytest.MonkeyPatch, case: SettingCase
) -> None:
    before = {
        decisions: uv_environment(IndexSettings(), machine, decisions=decisions)
        for decisions in (WHEN_LOCKED, WHEN_LOCKING)
    }
    case = case.fill(machine / "files")
    for name, value in case.variables:
        monkeypatch.setenv(name, value)
    if case.pip_conf:
        (machine / ".config/pip/pip.conf").write_text(case.pip_conf)
    (machine / ".config/uv/uv.toml").write_text(case.uv_toml)
    setting = case.setting
    for decisions, old in before.items():
        applies = setting.decision in decisions and not setting.files
        env = uv_environment(IndexSettings(), machine, decisions=decisions)
        added = {name: value for name, value in env.items() if old.get(name) != value}
        for name, value in case.variables:
            if not name.startswith("PIP_"):
                assert (env.get(name) == value) == applies or old.get(name) == value
        if not applies:
            assert added == {}
        settings = select_uv_settings(env, machine, decisions)
        expected = applies and bool(case.uv_toml) and not setting.formats
        assert (case.name in settings) == expected
    _check_sandboxes(machine, case)
    restricts = setting.decision in ("resolving", "building")
    assert bool(read_restrictions(machine).entries) == restricts


def _check_sandboxes(machine: Path, case: SettingCase) -> None:
    setting = case.setting
    indexes = sandbox_indexes(IndexSettings(), machine)
    inside = "resolution" in setting.sandboxes
    for name, value in case.variables:
        if not name.startswith("PIP_") and value:
            assert (name in indexes.variables) == inside
        in_steps = "steps" in setting.sandboxes and not setting.separator
        if name.startswith("UV_"):
            assert (name in passed_variables(os.environ)) == in_steps
    if case.uv_toml:
        assert (case.name in tomllib.loads(indexes.uv_toml)) == inside
