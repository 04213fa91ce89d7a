from __future__ import annotations

from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.util.config import load_configuration


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "config.toml"


def test_missing_file_means_defaults(file: Path) -> None:
    config = load_configuration(file, {})
    assert (config.builder, config.jobs, config.mirrors) == ("embedded", 0, {})


def test_flag_wins_over_variable_over_file(file: Path) -> None:
    file.write_text('jobs = 1\nruntime = "crun"\n[mirrors.debian]\nurls = ["https://a.example/"]\n')
    assert load_configuration(file, {}).jobs == 1
    assert load_configuration(file, {"DANLU_JOBS": "2"}).jobs == 2
    assert load_configuration(file, {"DANLU_JOBS": "2"}, flags={"jobs": 3}).jobs == 3
    assert load_configuration(file, {"DANLU_JOBS": "2"}, flags={"jobs": None}).jobs == 2
    assert load_configuration(file, {"DANLU_JOBS": ""}).jobs == 1
    config = load_configuration(file, {"DANLU_JOBS": "2"}, flags={"store_limit": "1GB"})
    assert (config.runtime, config.store_limit) == ("crun", "1GB")
    assert config.mirrors["debian"].urls == ("https://a.example/",)


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("bilder = 'x'", "unknown field `bilder`", "did you mean `builder`?"),
        ("[mirrors.debian]\nurl = ['x']", "unknown field `url`", "did you mean `urls`?"),
        ("[registries.a]\nzzz = 1", "unknown field `zzz`", "settings: insecure, mirror, ca"),
        ("jobs = 'x'", "Expected `int`", ""),
        ("jobs = -1", "jobs must be 0", ""),
        ("jobs = ", "config.toml", ""),
        ("store_limit = '10 parsecs'", "invalid size", ""),
        ("[mirrors]\ndebian = 3", "Expected `object`", ""),
        ("gpu_driver_root = ''", "gpu_driver_root must be an absolute path", ""),
        ("cdi_spec_dirs = '/etc/cdi:cdi'", "cdi_spec_dirs must be absolute paths", ""),
    ],
)
def test_error_names_the_invalid_file_and_setting(
    file: Path, text: str, message: str, hint: str
) -> None:
    file.write_text(text)
    with pytest.raises(UsageError, match=message) as caught:
        load_configuration(file, {})
    assert str(file) in caught.value.message
    assert hint in caught.value.hint


def test_file_that_is_not_text_is_named(file: Path) -> None:
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"config\.toml"):
        load_configuration(file, {})


def test_directory_in_place_of_the_file_is_named(file: Path) -> None:
    file.mkdir()
    with pytest.raises(UsageError, match="cannot read"):
        load_configuration(file, {})


def test_error_names_the_invalid_variable_or_flag(file: Path) -> None:
    with pytest.raises(UsageError, match="DANLU_JOBS=many"):
        load_configuration(file, {"DANLU_JOBS": "many"})
    with pytest.raises(UsageError, match="--store-limit"):
        load_configuration(file, {}, flags={"store_limit": "huge"})
