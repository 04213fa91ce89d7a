"""What pip's and uv's configuration restricts is applied, recorded, and named in errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from danlu.errors import ResolveError
from danlu.sandbox import pip_uv_config
from danlu.sources.pypi.indexes import IndexSettings, uv_environment
from danlu.sources.pypi.restrictions import read_restrictions
from tests.fakes.wheels import make_wheel
from tests.resolve.resolver import PythonResolver


@pytest.fixture
def home(resolver: PythonResolver, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home directory whose configuration files of pip and uv count."""
    home = resolver.root / "home"
    (home / ".config/pip").mkdir(parents=True)
    (home / ".config/uv").mkdir()
    for name in ("PIP_CONFIG_FILE", "UV_NO_CONFIG", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("XDG_CONFIG_DIRS", str(resolver.root / "system"))
    monkeypatch.setenv("VIRTUAL_ENV", str(resolver.root / "venv"))
    monkeypatch.setattr(pip_uv_config, "_ETC", resolver.root / "etc")
    return home


def make_versions(resolver: PythonResolver, name: str = "six") -> None:
    for version in ("1.0", "2.0"):
        make_wheel(resolver.links, name, version)


def describe(resolver: PythonResolver) -> list[tuple[str, str, str]]:
    entries = read_restrictions(resolver.project).entries
    return [(entry.setting, entry.value, entry.origin) for entry in entries]


def test_constraints_of_pips_file_choose_versions(resolver: PythonResolver, home: Path) -> None:
    make_versions(resolver)
    (home / "limits.txt").write_text("-c more.txt\n")
    (home / "more.txt").write_text("six<2  # here\nother<3\n")
    place = (home / "limits.txt").as_uri()
    (home / ".config/pip/pip.conf").write_text(f"[global]\nconstraint = {place}\n")
    assert resolver.pins(resolver(resolver.request("six"))) == ["six==1.0"]
    assert describe(resolver) == [
        ("constraint", "six<2", "pip's configuration"),
        ("constraint", "other<3", "pip's configuration"),
    ]


def test_constraints_of_the_machine_and_of_the_project_both_count(
    resolver: PythonResolver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_versions(resolver)
    make_versions(resolver, "other")
    (home / "limits.txt").write_text("six<2\n")
    monkeypatch.setenv("PIP_CONSTRAINT", f"{home}/limits.txt")
    (resolver.project / "r.txt").write_text("-c c.txt\nsix\nother\n")
    (resolver.project / "c.txt").write_text("other<2\n")
    packages = resolver(resolver.request(requirements="r.txt"))
    assert resolver.pins(packages) == ["other==1.0", "six==1.0"]


def test_constraints_of_the_build_file_choose_versions_and_install_nothing(
    resolver: PythonResolver,
) -> None:
    make_versions(resolver)
    make_versions(resolver, "other")
    packages = resolver(resolver.request("six", constraints=("six<2", "other<2")))
    assert resolver.pins(packages) == ["six==1.0"]


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("home/.config/uv/uv.toml", 'override-dependencies = ["six==1.0"]\n'),
        ("project/pyproject.toml", '[tool.uv]\nconstraint-dependencies = ["six<2"]\n'),
        ("project/uv.toml", '[pip]\nresolution = "lowest"\n'),
    ],
)
def test_settings_of_uvs_files_choose_versions(
    resolver: PythonResolver, home: Path, file: str, text: str
) -> None:
    make_versions(resolver)
    (resolver.root / file).write_text(text)
    assert resolver.pins(resolver(resolver.request("six"))) == ["six==1.0"]
    ((_, _, origin),) = describe(resolver)
    assert origin == "uv's configuration"


def test_a_setting_that_is_not_about_versions_does_not_change_a_resolution(
    resolver: PythonResolver, home: Path
) -> None:
    make_wheel(resolver.links, "app", requires=["six"])
    make_versions(resolver)
    (resolver.project / "uv.toml").write_text(
        "[pip]\nno-deps = true\nuniversal = true\nrequire-hashes = true\n"
        'no-emit-package = ["six"]\ntarget = "/nowhere"\n'
    )
    assert len(resolver(resolver.request("app"))) == 2
    assert describe(resolver) == []


def test_an_unsatisfiable_constraint_is_named_with_its_files(
    resolver: PythonResolver, home: Path
) -> None:
    make_versions(resolver)
    (home / "limits.txt").write_text("# none\nsix<2\nother<2\n")
    config = home / ".config/pip/pip.conf"
    config.write_text(f"[install]\nconstraint = {home}/limits.txt\n")
    with pytest.raises(ResolveError, match="cannot resolve") as caught:
        resolver(resolver.request("six>=2", line=3))
    assert caught.value.details[-1] == (
        f"six<2 ({home}/limits.txt, line 2), from `constraint` in pip's configuration {config}"
    )
    assert "other" not in " ".join(caught.value.details)
    assert "`constraint`" in caught.value.hint


def test_a_setting_about_all_packages_is_named_too(
    resolver: PythonResolver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_versions(resolver)
    monkeypatch.setenv("UV_EXCLUDE_NEWER", "2001-01-01")
    with pytest.raises(ResolveError) as caught:
        resolver(resolver.request("six>=3"))
    assert caught.value.details[-1] == "2001-01-01, from `exclude-newer` in UV_EXCLUDE_NEWER"


@pytest.mark.parametrize("cutoff", ["2001-01-01", "2001-01-01T00:00:00Z", "P9999D"])
def test_pips_date_ignores_newer_files_too(
    resolver: PythonResolver, home: Path, monkeypatch: pytest.MonkeyPatch, cutoff: str
) -> None:
    make_versions(resolver)
    monkeypatch.setenv("PIP_UPLOADED_PRIOR_TO", cutoff)
    with pytest.raises(ResolveError) as caught:
        resolver(resolver.request("six>=3"))
    assert cutoff in caught.value.details[-1]
    assert "uploaded-prior-to" in caught.value.details[-1]


@pytest.mark.parametrize(("text", "meant"), [("2001-01-01", "2001-01-01T00:00:00"), ("P3D", "P3D")])
def test_pips_date_begins_a_day_that_uv_would_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, meant: str
) -> None:
    monkeypatch.setenv("PIP_UPLOADED_PRIOR_TO", text)
    assert uv_environment(IndexSettings(), tmp_path)["UV_EXCLUDE_NEWER"] == meant


@pytest.mark.parametrize("variable", ["PIP_CONSTRAINT", "UV_CONSTRAINT", "UV_OVERRIDE"])
def test_a_missing_file_is_an_error_that_names_the_setting(
    resolver: PythonResolver, home: Path, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "/nowhere/limits.txt")
    with pytest.raises(
        ResolveError, match=r"requirements file /nowhere/limits\.txt not found"
    ) as caught:
        read_restrictions(resolver.project)
    assert variable in caught.value.hint
    assert caught.value.exit_code == 2


def test_formats_are_read_from_both_programs(
    resolver: PythonResolver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_BINARY", "Six,other")
    (home / ".config/uv/uv.toml").write_text("no-build = true\n")
    formats = read_restrictions(resolver.project).formats
    assert formats.only_binary == {":all:"}
    (home / ".config/uv/uv.toml").write_text("")
    assert read_restrictions(resolver.project).formats.no_binary == {"six", "other"}
    monkeypatch.setenv("PIP_NO_BINARY", "/x")
    with pytest.raises(ResolveError, match="invalid package name") as caught:
        read_restrictions(resolver.project)
    assert "PIP_NO_BINARY" in caught.value.hint


def test_no_address_is_recorded(
    resolver: PythonResolver, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (home / "limits.txt").write_text("six @ https://me:secret@one.test/six.whl\n/srv/x.whl\n")
    places = f"{home}/limits.txt https://me:secret@one.test/limits.txt"
    monkeypatch.setenv("UV_CONSTRAINT", places)
    assert [value for _, value, _ in describe(resolver)] == [
        "six @ a URL",
        "a local file",
        "a file on a server",
    ]
