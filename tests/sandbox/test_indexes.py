from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from danlu.sandbox import indexes, installerconfig, trust


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment whose home and system directories are empty."""
    monkeypatch.setattr(installerconfig, "_ETC", tmp_path / "etc")
    return {
        "HOME": str(tmp_path / "home"),
        "VIRTUAL_ENV": str(tmp_path / "venv"),
        "XDG_CONFIG_DIRS": str(tmp_path / "system"),
    }


def given(machine: dict[str, str], name: str, text: str) -> None:
    path = Path(machine["HOME"]) / ".config" / name
    path.parent.mkdir(parents=True)
    path.write_text(text)


def test_pips_files_and_variables_are_merged_as_pip_does(
    machine: dict[str, str], tmp_path: Path
) -> None:
    given(
        machine,
        "pip/pip.conf",
        "[global]\nindex-url = https://one.example/simple\ntimeout = 5\n"
        "[install]\nextra_index_url = https://a.example\n    https://b.example\n",
    )
    found = indexes.read({**machine, "PIP_DEFAULT_TIMEOUT": "9"})
    assert found.pip["index-url"] == "https://one.example/simple"
    assert found.pip["extra-index-url"] == ("https://a.example", "https://b.example")
    assert found.pip["timeout"] == "9"
    assert found.mounts == ()


def test_directories_of_this_machine_are_mounted_and_renamed(
    machine: dict[str, str], tmp_path: Path
) -> None:
    (tmp_path / "mirror/simple").mkdir(parents=True)
    (tmp_path / "wheels").mkdir()
    found = indexes.read(
        {
            **machine,
            "PIP_INDEX_URL": f"file://{tmp_path}/mirror/simple",
            "PIP_FIND_LINKS": f"{tmp_path}/wheels https://links.example/page",
        }
    )
    files = f"/run/danlu/files{tmp_path}"
    assert found.pip["index-url"] == f"file://{files}/mirror/simple"
    assert found.pip["find-links"] == (f"{files}/wheels", "https://links.example/page")
    assert [mount.target for mount in found.mounts] == [f"{files}/mirror", f"{files}/wheels"]
    assert all(mount.readonly for mount in found.mounts)


def test_what_a_page_links_to_is_mounted_with_it(machine: dict[str, str], tmp_path: Path) -> None:
    page = tmp_path / "my wheels/index.html"
    page.parent.mkdir()
    page.touch()
    found = indexes.read({**machine, "PIP_FIND_LINKS": page.as_uri()})
    assert found.pip["find-links"] == (f"file:///run/danlu/files{tmp_path}/my%20wheels/index.html",)
    (mount,) = found.mounts
    assert (mount.target, mount.source) == (f"/run/danlu/files{page.parent}", page.parent)


@pytest.mark.parametrize("value", ["/", "relative", "/nowhere/simple", "https://x.example/simple"])
def test_what_is_no_directory_of_this_machine_stays_as_it_is(
    machine: dict[str, str], value: str
) -> None:
    found = indexes.read({**machine, "PIP_FIND_LINKS": value})
    assert found.pip["find-links"] == (value,)
    assert found.mounts == ()


def test_uv_is_told_what_pip_is_told(machine: dict[str, str], tmp_path: Path) -> None:
    environ = {**machine, "PIP_INDEX_URL": "https://x.example", "PIP_TRUSTED_HOST": "x.example"}
    mounts = indexes.write(indexes.read(environ), tmp_path)
    written = {mount.target: mount.source for mount in mounts}
    text = written["/etc/xdg/uv/uv.toml"]
    assert text is not None
    assert tomllib.loads(text.read_text()) == {
        "index-url": "https://x.example",
        "allow-insecure-host": ["x.example"],
    }


def test_uvs_own_file_wins_over_pips(machine: dict[str, str], tmp_path: Path) -> None:
    given(
        machine,
        "uv/uv.toml",
        'find-links = ["https://l.example"]\ncache-dir = "/mine"\n'
        '[[index]]\nname = "own"\nurl = "https://own.example"\ndefault = true\n',
    )
    mounts = indexes.write(indexes.read({**machine, "PIP_FIND_LINKS": "https://p"}), tmp_path)
    text = next(mount.source for mount in mounts if "uv" in mount.target)
    assert text is not None
    assert tomllib.loads(text.read_text()) == {
        "find-links": ["https://l.example"],
        "index": [{"name": "own", "url": "https://own.example", "default": True}],
    }


def test_uvs_variables_lose_their_names(machine: dict[str, str]) -> None:
    found = indexes.read(
        {**machine, "UV_DEFAULT_INDEX": "mine=https://x.example/a=b", "UV_INDEX": "https://y?a=b"}
    )
    assert found.uv == {
        "index-url": "https://x.example/a=b",
        "extra-index-url": ["https://y?a=b"],
    }


def test_a_machine_without_configuration_gives_none(
    machine: dict[str, str], tmp_path: Path
) -> None:
    assert indexes.write(indexes.read(machine), tmp_path) == ()


def test_proxies_are_given_in_both_spellings() -> None:
    assert trust.proxies({"HTTPS_PROXY": "http://p", "no_proxy": "local"}) == {
        "https_proxy": "http://p",
        "HTTPS_PROXY": "http://p",
        "no_proxy": "local",
        "NO_PROXY": "local",
    }


def test_the_users_bundle_comes_before_the_systems(tmp_path: Path) -> None:
    mine = tmp_path / "mine.pem"
    mine.write_text("x")
    environ = {"SSL_CERT_FILE": str(mine)}
    assert trust.bundle(environ) == mine
    assert trust.environment(environ)["PIP_CERT"] == "/run/danlu/ca.pem"
