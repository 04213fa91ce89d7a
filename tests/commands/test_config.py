from __future__ import annotations

from pathlib import Path

import pytest

from danlu.commands.config import Setting, effective
from danlu.errors import UsageError
from danlu.util.paths import Paths


def found(home: Path, text: str = "", **environ: str) -> dict[str, Setting]:
    env = {"DANLU_HOME": str(home), **environ}
    paths = Paths.of(env)
    if text:
        paths.config.mkdir(parents=True, exist_ok=True)
        paths.config_file.write_text(text)
    return {one.name: one for one in effective(paths, env)}


def test_every_setting_is_a_default_where_nothing_is_said(tmp_path: Path) -> None:
    settings = {name: one for name, one in found(tmp_path).items() if not name.startswith("paths.")}
    assert {one.origin for one in settings.values()} == {"default"}
    assert {"builder", "jobs", "mirrors", "registries"} <= set(settings)


def test_a_variable_wins_over_the_file_and_the_file_over_the_default(tmp_path: Path) -> None:
    text = 'builder = "embedded"\njobs = 3\n'
    settings = found(tmp_path, text, DANLU_JOBS="7")
    assert (settings["jobs"].value, settings["jobs"].origin) == (7, "DANLU_JOBS")
    assert settings["builder"].origin == str(tmp_path / "config" / "config.toml")
    assert settings["runtime"].origin == "default"


def test_tables_are_told_field_by_field(tmp_path: Path) -> None:
    text = '[mirrors.debian]\nurls = ["https://mirror.example.org/debian"]\n'
    settings = found(tmp_path, text)
    assert settings["mirrors.debian.urls"].value == ["https://mirror.example.org/debian"]
    assert settings["mirrors.debian.urls"].origin.endswith("config.toml")
    assert settings["mirrors.debian.keyring"].origin == "default"
    text = '[registries."localhost:5000"]\ninsecure = true\n'
    assert found(tmp_path, text)['registries."localhost:5000".insecure'].value is True


def test_a_variable_may_say_what_a_cluster_is(tmp_path: Path) -> None:
    text = '[kubernetes]\ncontext = "team"\nnamespace = "training"\n'
    settings = found(
        tmp_path,
        text,
        DANLU_KUBERNETES_CONTEXT="ci",
        DANLU_KUBERNETES_REGISTRY="r/x",
        DANLU_JOBS="",
    )
    shown = {name: (one.value, one.origin) for name, one in settings.items()}
    file = str(tmp_path / "config" / "config.toml")
    assert shown["kubernetes.context"] == ("ci", "DANLU_KUBERNETES_CONTEXT")
    assert shown["kubernetes.registry"] == ("r/x", "DANLU_KUBERNETES_REGISTRY")
    assert shown["kubernetes.namespace"] == ("training", file)
    assert shown["kubernetes.image_pull_secret"] == ("", "default")
    assert shown["jobs"] == (0, "default")


def test_passwords_in_addresses_are_not_shown(tmp_path: Path) -> None:
    text = '[mirrors.debian]\nurls = ["https://me:secret@mirror.example.org/debian"]\n'
    value = found(tmp_path, text)["mirrors.debian.urls"].value
    assert value == ["https://…@mirror.example.org/debian"]


def test_directories_say_what_moved_them(tmp_path: Path) -> None:
    assert found(tmp_path)["paths.store"].origin == "DANLU_HOME"
    env = {
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "d"),
        "XDG_STATE_HOME": "relative",
    }
    settings = {one.name: one for one in effective(Paths.of(env), env)}
    assert settings["paths.store"].origin == "XDG_DATA_HOME"
    assert settings["paths.logs"].origin == "default"


@pytest.mark.parametrize("text", ["builder = 3", "nonsense = 1", "= broken", "[mirrors]\nx=1"])
def test_a_wrong_file_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"config\.toml"):
        found(tmp_path, text)
