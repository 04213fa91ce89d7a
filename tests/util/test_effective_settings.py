from __future__ import annotations

from pathlib import Path

import pytest

from danlu.errors import UsageError
from danlu.util.effective_settings import EffectiveSetting, list_settings
from danlu.util.paths import Paths


def load_effective_settings(
    home: Path, text: str = "", **environ: str
) -> dict[str, EffectiveSetting]:
    env = {"DANLU_HOME": str(home), **environ}
    paths = Paths.of(env)
    if text:
        paths.config.mkdir(parents=True, exist_ok=True)
        paths.config_file.write_text(text)
    return {path.name: path for path in list_settings(paths, env)}


def test_settings_are_defaults_without_configuration(tmp_path: Path) -> None:
    settings = {
        name: setting
        for name, setting in load_effective_settings(tmp_path).items()
        if not name.startswith("paths.")
    }
    assert {value.origin for value in settings.values()} == {"default"}
    assert {"builder", "jobs", "mirrors", "registries"} <= set(settings)


def test_variables_override_the_file_which_overrides_defaults(tmp_path: Path) -> None:
    text = 'builder = "embedded"\njobs = 3\n'
    settings = load_effective_settings(tmp_path, text, DANLU_JOBS="7")
    assert (settings["jobs"].value, settings["jobs"].origin) == (7, "DANLU_JOBS")
    assert settings["builder"].origin == str(tmp_path / "config" / "config.toml")
    assert settings["runtime"].origin == "default"


def test_tables_are_listed_field_by_field(tmp_path: Path) -> None:
    text = '[mirrors.debian]\nurls = ["https://mirror.example.org/debian"]\n'
    settings = load_effective_settings(tmp_path, text)
    assert settings["mirrors.debian.urls"].value == ["https://mirror.example.org/debian"]
    assert settings["mirrors.debian.urls"].origin.endswith("config.toml")
    assert settings["mirrors.debian.keyring"].origin == "default"
    text = '[registries."localhost:5000"]\ninsecure = true\n'
    assert (
        load_effective_settings(tmp_path, text)['registries."localhost:5000".insecure'].value
        is True
    )


def test_variable_can_set_a_field_of_a_table(tmp_path: Path) -> None:
    text = '[kubernetes]\ncontext = "team"\nnamespace = "training"\n'
    settings = load_effective_settings(
        tmp_path,
        text,
        DANLU_KUBERNETES_CONTEXT="ci",
        DANLU_KUBERNETES_REGISTRY="r/x",
        DANLU_JOBS="",
    )
    output = {name: (setting.value, setting.origin) for name, setting in settings.items()}
    file = str(tmp_path / "config" / "config.toml")
    assert output["kubernetes.context"] == ("ci", "DANLU_KUBERNETES_CONTEXT")
    assert output["kubernetes.registry"] == ("r/x", "DANLU_KUBERNETES_REGISTRY")
    assert output["kubernetes.namespace"] == ("training", file)
    assert output["kubernetes.image_pull_secret"] == ("", "default")
    assert output["jobs"] == (0, "default")


def test_passwords_in_urls_are_masked(tmp_path: Path) -> None:
    text = '[mirrors.debian]\nurls = ["https://me:secret@mirror.example.org/debian"]\n'
    value = load_effective_settings(tmp_path, text)["mirrors.debian.urls"].value
    assert value == ["https://***@mirror.example.org/debian"]


def test_directories_name_the_variable_that_sets_them(tmp_path: Path) -> None:
    assert load_effective_settings(tmp_path)["paths.store"].origin == "DANLU_HOME"
    env = {
        "HOME": str(tmp_path),
        "XDG_DATA_HOME": str(tmp_path / "d"),
        "XDG_STATE_HOME": "relative",
    }
    settings = {entry.name: entry for entry in list_settings(Paths.of(env), env)}
    assert settings["paths.store"].origin == "XDG_DATA_HOME"
    assert settings["paths.logs"].origin == "default"


@pytest.mark.parametrize("text", ["builder = 3", "nonsense = 1", "= broken", "[mirrors]\nx=1"])
def test_invalid_configuration_file_is_named(tmp_path: Path, text: str) -> None:
    with pytest.raises(UsageError, match=r"config\.toml"):
        load_effective_settings(tmp_path, text)
