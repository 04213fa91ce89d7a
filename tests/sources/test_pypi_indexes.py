"""The indexes that uv uses: from pip's configuration, the project, and the user's uv settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from danlu.environment.types import PipIndex, PythonPackages
from danlu.errors import Span, UsageError
from danlu.sandbox.machine_settings import WHEN_LOCKED, WHEN_LOCKING
from danlu.sources.pypi.indexes import (
    IndexSettings,
    index_state,
    local_page_times,
    read_index_settings,
    select_uv_settings,
    uv_environment,
)
from danlu.util.config import MirrorConfig


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / ".config" / "pip").mkdir(parents=True)
    return tmp_path


def environ(home: Path, **more: str) -> dict[str, str]:
    return {
        "HOME": str(home),
        "VIRTUAL_ENV": str(home / "venv"),
        "XDG_CONFIG_DIRS": str(home),
        **more,
    }


def pip_conf(home: Path, text: str) -> None:
    (home / ".config" / "pip" / "pip.conf").write_text(text)


def test_pips_lists_become_uvs(home: Path) -> None:
    pip_conf(
        home,
        "[global]\nindex-url = https://one.test/simple\n"
        "extra-index-url =\n    https://two.test/simple\n    file:///srv/three\n"
        "find-links = /srv/wheels /srv/more,wheels\ntrusted-host = one.test two.test:8080\n",
    )
    env = uv_environment(IndexSettings(), home, environ(home))
    assert env["UV_DEFAULT_INDEX"] == "https://one.test/simple"
    assert env["UV_INDEX"] == "https://two.test/simple file:///srv/three"
    assert env["UV_FIND_LINKS"] == "file:///srv/wheels,file:///srv/more%2Cwheels"
    assert env["UV_INSECURE_HOST"] == "one.test two.test:8080"
    assert env["UV_INDEX_STRATEGY"] == "unsafe-best-match"


def test_relative_and_home_paths_are_found(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home))
    pip_conf(home, "[global]\nfind-links = wheels ~/more\n")
    env = uv_environment(IndexSettings(), home / "project", environ(home))
    assert env["UV_FIND_LINKS"] == f"file://{home}/project/wheels,file://{home}/more"


def test_settings_other_than_restrictions_remain_for_an_installation(home: Path) -> None:
    project = home / "project"
    project.mkdir()
    (project / "uv.toml").write_text(
        'constraint-dependencies = ["six<2"]\nindex-strategy = "first-index"\n'
        'keyring-provider = "subprocess"\nlink-mode = "symlink"\nno-binary = true\n'
        '[[index]]\nname = "own"\nurl = "https://own.test/simple"\n[pip]\nno-deps = true\n'
    )
    fetching = {
        "index": [{"name": "own", "url": "https://own.test/simple"}],
        "index-strategy": "first-index",
        "keyring-provider": "subprocess",
    }
    assert select_uv_settings(environ(home), project, WHEN_LOCKED) == fetching
    assert select_uv_settings(environ(home), project, WHEN_LOCKING) == {
        "constraint-dependencies": ["six<2"],
        **fetching,
    }


def test_a_broken_file_is_refused(home: Path) -> None:
    pip_conf(home, "this is not ini")
    with pytest.raises(UsageError, match="no section header"):
        uv_environment(IndexSettings(), home, environ(home))


def test_uvs_own_variables_win_over_pips_configuration(home: Path) -> None:
    pip_conf(home, "[global]\nindex-url = https://pip.test\nextra-index-url = https://pip2.test\n")
    env = uv_environment(IndexSettings(), home, environ(home, UV_INDEX_URL="https://uv.test"))
    assert "UV_DEFAULT_INDEX" not in env
    assert env["UV_INDEX_URL"] == "https://uv.test"
    assert env["UV_INDEX"] == "https://pip2.test"


def test_uvs_own_files_win_over_pips_configuration(home: Path) -> None:
    pip_conf(home, "[global]\nindex-url = https://pip.test\nextra-index-url = https://pip2.test\n")
    (home / ".config" / "uv").mkdir()
    (home / ".config" / "uv" / "uv.toml").write_text(
        '[[index]]\nurl = "https://uv.test"\ndefault = true\n[pip]\nextra-index-url = ["https://x"]\n'
    )
    env = uv_environment(IndexSettings(), home, environ(home))
    assert "UV_DEFAULT_INDEX" not in env
    assert "UV_INDEX" not in env
    assert "UV_INDEX_STRATEGY" not in env, "what is said in uv's words is searched in uv's way"


def test_the_environments_index_wins_over_everything(home: Path) -> None:
    pip_conf(home, "[global]\nindex-url = https://pip.test\nextra-index-url = https://pip2.test\n")
    indexes = read_index_settings(
        PipIndex("https://own.test/simple", "https://extra.test", True), [], home
    )
    env = uv_environment(indexes, home, environ(home, UV_INDEX_URL="https://uv.test"))
    assert env["UV_DEFAULT_INDEX"] == "https://own.test/simple"
    assert "UV_INDEX_URL" not in env
    assert env["UV_INDEX"] == "https://extra.test https://pip2.test"
    assert env["UV_INSECURE_HOST"] == "own.test extra.test"


def test_requirements_files_name_indexes_too(home: Path) -> None:
    (home / "sub/wheels").mkdir(parents=True)
    (home / "r.txt").write_text("-r sub/more.txt\n--extra-index-url=https://w.test/cpu\n--pre\n")
    (home / "sub" / "more.txt").write_text("-f ./wheels # local\n--index-url https://${HOST}/s\n")
    indexes = read_index_settings(
        None, [PythonPackages(requirements="r.txt")], home, {"HOST": "h.test"}
    )
    assert indexes == IndexSettings(
        default="https://h.test/s",
        extra=("https://w.test/cpu",),
        find_links=(f"file://{home}/sub/wheels",),
        prereleases=True,
    )


def test_an_index_replaces_those_of_earlier_lines_as_in_pip(home: Path) -> None:
    (home / "r.txt").write_text("--extra-index-url https://a.test\n-i https://b.test\n-f w\n")
    indexes = read_index_settings(None, [PythonPackages(requirements="r.txt")], home)
    links = ((home / "w").as_uri(),)
    assert indexes == IndexSettings(default="https://b.test", find_links=links)


def test_pips_certificate_is_trusted(home: Path) -> None:
    pip_conf(home, f"[global]\ncert = {home}/ca.pem\n")
    (home / "ca.pem").touch()
    env = uv_environment(IndexSettings(), home, environ(home))
    assert env["SSL_CERT_FILE"] == f"{home}/ca.pem"
    env = uv_environment(IndexSettings(), home, environ(home, SSL_CERT_FILE="/mine"))
    assert env["SSL_CERT_FILE"] == "/mine"


def test_pips_proxy_is_used_unless_one_is_set(home: Path) -> None:
    pip_conf(home, "[global]\nproxy = proxy.test:3128\n")
    assert (
        uv_environment(IndexSettings(), home, environ(home))["HTTPS_PROXY"]
        == "http://proxy.test:3128"
    )
    for name in ("HTTPS_PROXY", "https_proxy", "ALL_PROXY", "all_proxy"):
        env = uv_environment(IndexSettings(), home, environ(home, **{name: "http://other"}))
        assert env[name] == "http://other"
        assert env.get("HTTPS_PROXY") in (None, "http://other")


def test_variables_that_change_our_cache_or_output_are_removed(home: Path) -> None:
    hostile = {"UV_NO_CACHE": "1", "UV_COMPILE_BYTECODE": "1", "UV_LINK_MODE": "symlink"}
    hostile |= {"PYTHONPATH": "/evil", "UV_PYTHON": "3.8", "UV_REQUIRE_HASHES": "1"}
    env = uv_environment(IndexSettings(), home, environ(home, **hostile))
    assert not hostile.keys() & env.keys()


def test_content_of_local_indexes_is_part_of_their_state(tmp_path: Path) -> None:
    (tmp_path / "links").mkdir()
    (tmp_path / "simple/a").mkdir(parents=True)
    variables = {
        "UV_FIND_LINKS": f"https://example.org/,file://{tmp_path}/links",
        "UV_INDEX": f"near=file://{tmp_path}/simple https://example.org/simple",
    }
    state, pages = index_state(variables, tmp_path), local_page_times(variables, ["a", "b"])
    assert index_state(variables, tmp_path) == state
    assert set(pages) == {
        str(tmp_path / "simple" / name) for name in ("a", "a/index.html", "b", "b/index.html")
    }
    os.utime(tmp_path / "links", (1, 1))
    assert index_state(variables, tmp_path) != state
    (tmp_path / "simple/a/index.html").write_text("")
    assert local_page_times(variables, ["a", "b"]) != pages


@pytest.mark.parametrize(
    "line",
    [
        *("--find-links ../links", "-f {root}/links", "--index-url file://{root}/links", "-f link"),
        *("--extra-index-url file:///srv/simple", "-f ~/links"),
    ],
)
def test_a_requirements_file_names_no_directory_outside_the_project(
    tmp_path: Path, line: str
) -> None:
    project = tmp_path / "project"
    project.mkdir()
    (tmp_path / "links").mkdir()
    (project / "link").symlink_to("../links")
    (project / "r.txt").write_text("six\n" + line.format(root=tmp_path))
    with pytest.raises(UsageError, match=r"outside the project|leads out") as caught:
        read_index_settings(None, [PythonPackages(requirements="r.txt")], project)
    assert caught.value.span == Span("r.txt", 2)
    assert "UV_FIND_LINKS" in caught.value.hint


def test_options_of_a_list_of_packages_are_those_of_a_requirements_file(home: Path) -> None:
    pip_conf(home, "[global]\nextra-index-url = https://pip.test\n")
    names = ("--extra-index-url https://x.test", "-f ./wheels", "--pre", "--trusted-host=h.test")
    declared = [
        PythonPackages(("numpy", *names)),
        PythonPackages(("torch", "-i https://first.test/${HOME}")),
        PythonPackages(("--index-url https://second.test",)),
    ]
    indexes = read_index_settings(PipIndex("https://own.test"), declared, home)
    assert indexes == IndexSettings(
        default="https://own.test",
        first=("https://first.test/${HOME}", "https://second.test"),
        extra=("https://x.test",),
        find_links=(f"file://{home}/wheels",),
        trusted=("h.test",),
        prereleases=True,
    )
    env = uv_environment(indexes, home, environ(home))
    assert env["UV_INDEX"] == (
        "https://first.test/${HOME} https://second.test https://x.test https://pip.test"
    )
    assert env["UV_INDEX_STRATEGY"] == "first-index", "what the first has comes from no other"


@pytest.mark.parametrize("name", ["-f ../links", "-f link", "-i file:///srv/simple"])
def test_a_list_of_packages_names_no_directory_outside_the_project(
    tmp_path: Path, name: str
) -> None:
    project, span = tmp_path / "project", Span("build.envd", 3, 5)
    project.mkdir()
    (tmp_path / "links").mkdir()
    (project / "link").symlink_to("../links")
    with pytest.raises(UsageError, match=r"outside the project|leads out") as caught:
        read_index_settings(None, [PythonPackages((name,), span=span)], project)
    assert caught.value.span == span


def test_an_index_outside_the_project_is_rejected(tmp_path: Path) -> None:
    span = Span("build.envd", 3)
    with pytest.raises(UsageError, match="outside the project") as caught:
        read_index_settings(PipIndex("file:///root", span=span), [], tmp_path)
    assert caught.value.span == span
    inside = PipIndex(f"file://{tmp_path}/simple", span=span)
    assert read_index_settings(inside, [], tmp_path).default == f"file://{tmp_path}/simple"


def test_a_mirror_takes_the_place_of_a_server_that_the_build_file_names(tmp_path: Path) -> None:
    declared = [
        PythonPackages(("torch", "--extra-index-url https://download.pytorch.org/whl/cpu")),
        PythonPackages(("-f https://data.dgl.ai/wheels/repo.html",)),
        PythonPackages(("--extra-index-url https://download.pytorch.org/whlx",)),
    ]
    mirrors = {
        "download.pytorch.org/whl": MirrorConfig(("https://mirror.test/pytorch-wheels/",)),
        "download.pytorch.org": MirrorConfig(("https://other.test",)),
        "pytorch.org": MirrorConfig(("https://wrong.test",)),
    }
    index_settings = read_index_settings(
        PipIndex("https://pypi.test/simple"),
        declared,
        tmp_path,
        {"DANLU_MIRROR_DATA_DGL_AI": str(tmp_path), "DANLU_MIRROR_PYPI_TEST": "https://own.test"},
        mirrors=mirrors,
    )
    assert index_settings == IndexSettings(
        default="https://own.test/simple",
        extra=("https://mirror.test/pytorch-wheels/cpu", "https://other.test/whlx"),
        find_links=(f"{tmp_path.as_uri()}/wheels/repo.html",),
    )
