from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from danlu.sandbox import network_env, pip_indexes, pip_uv_config


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment whose home and system directories are empty."""
    monkeypatch.setattr(pip_uv_config, "_ETC", tmp_path / "etc")
    return {
        "HOME": str(tmp_path / "home"),
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "XDG_CONFIG_DIRS": str(tmp_path / "system"),
    }


def write_config(machine: dict[str, str], name: str, text: str) -> None:
    path = Path(machine["HOME"]) / ".config" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_pip_files_and_variables_are_merged_like_pip_does(
    machine: dict[str, str], tmp_path: Path
) -> None:
    write_config(
        machine,
        "pip/pip.conf",
        "[global]\nindex-url = https://one.example/simple\ntimeout = 5\n"
        "[install]\nextra_index_url = https://a.example\n    https://b.example\n",
    )
    indexes = pip_indexes.read_indexes({**machine, "PIP_DEFAULT_TIMEOUT": "9"})
    assert indexes.pip["index-url"] == "https://one.example/simple"
    assert indexes.pip["extra-index-url"] == ("https://a.example", "https://b.example")
    assert indexes.pip["timeout"] == "9"
    assert indexes.mounts == ()


def test_local_directories_are_mounted_and_their_paths_mapped(
    machine: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mirror/simple").mkdir(parents=True)
    (tmp_path / "wheels").mkdir()
    indexes = pip_indexes.read_indexes(
        {
            **machine,
            "PIP_INDEX_URL": f"file://{tmp_path}/mirror/simple",
            "PIP_FIND_LINKS": f"{tmp_path}/wheels https://links.example/page",
        }
    )
    files = f"/run/danlu/files{tmp_path}"
    assert indexes.pip["index-url"] == f"file://{files}/mirror/simple"
    assert indexes.pip["find-links"] == (f"{files}/wheels", "https://links.example/page")
    assert [mount.target for mount in indexes.mounts] == [f"{files}/mirror", f"{files}/wheels"]
    assert all(mount.readonly for mount in indexes.mounts)


def test_files_next_to_an_index_page_are_mounted_too(
    machine: dict[str, str], tmp_path: Path
) -> None:
    page = tmp_path / "my wheels/index.html"
    page.parent.mkdir()
    page.touch()
    indexes = pip_indexes.read_indexes({**machine, "PIP_FIND_LINKS": page.as_uri()})
    assert indexes.pip["find-links"] == (
        f"file:///run/danlu/files{tmp_path}/my%20wheels/index.html",
    )
    (mount,) = indexes.mounts
    assert (mount.target, mount.source) == (f"/run/danlu/files{page.parent}", page.parent)


@pytest.mark.parametrize("value", ["/", "relative", "/nowhere/simple", "https://x.example/simple"])
def test_other_values_are_unchanged(machine: dict[str, str], value: str) -> None:
    indexes = pip_indexes.read_indexes({**machine, "PIP_FIND_LINKS": value})
    assert indexes.pip["find-links"] == (value,)
    assert indexes.mounts == ()


def test_pip_options_are_converted_for_uv(machine: dict[str, str], tmp_path: Path) -> None:
    environ = {**machine, "PIP_INDEX_URL": "https://x.example", "PIP_TRUSTED_HOST": "x.example"}
    mounts = pip_indexes.write_config_files(pip_indexes.read_indexes(environ), tmp_path)
    content = {mount.target: mount.source for mount in mounts}
    text = content["/etc/xdg/uv/uv.toml"]
    assert text is not None
    assert tomllib.loads(text.read_text()) == {
        "index-url": "https://x.example",
        "allow-insecure-host": ["x.example"],
    }


def test_uv_file_wins_over_pip_options(machine: dict[str, str], tmp_path: Path) -> None:
    write_config(
        machine,
        "uv/uv.toml",
        'find-links = ["https://l.example"]\ncache-dir = "/mine"\n'
        '[[index]]\nname = "own"\nurl = "https://own.example"\ndefault = true\n',
    )
    mounts = pip_indexes.write_config_files(
        pip_indexes.read_indexes({**machine, "PIP_FIND_LINKS": "https://p"}), tmp_path
    )
    text = next(mount.source for mount in mounts if "uv" in mount.target)
    assert text is not None
    assert tomllib.loads(text.read_text()) == {
        "find-links": ["https://l.example"],
        "index": [{"name": "own", "url": "https://own.example", "default": True}],
    }


def test_index_names_in_uv_variables_are_stripped(machine: dict[str, str]) -> None:
    indexes = pip_indexes.read_indexes(
        {**machine, "UV_DEFAULT_INDEX": "mine=https://x.example/a=b", "UV_INDEX": "https://y?a=b"}
    )
    assert indexes.uv == {
        "index-url": "https://x.example/a=b",
        "extra-index-url": ["https://y?a=b"],
    }


def test_machine_without_configuration_has_no_indexes(
    machine: dict[str, str], tmp_path: Path
) -> None:
    assert pip_indexes.write_config_files(pip_indexes.read_indexes(machine), tmp_path) == ()


def test_proxies_are_set_in_both_spellings() -> None:
    assert network_env.proxy_variables({"HTTPS_PROXY": "http://p", "no_proxy": "local"}) == {
        "https_proxy": "http://p",
        "HTTPS_PROXY": "http://p",
        "no_proxy": "local",
        "NO_PROXY": "local",
    }


def test_configured_ca_bundle_wins_over_the_systems(tmp_path: Path) -> None:
    mine = tmp_path / "mine.pem"
    mine.write_text("x")
    environ = {"SSL_CERT_FILE": str(mine)}
    assert network_env.find_ca_bundle(environ) == mine
    assert network_env.network_variables(environ)["PIP_CERT"] == "/run/danlu/ca.pem"
