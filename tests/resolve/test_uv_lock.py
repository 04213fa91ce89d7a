"""Versions and files of a ``uv.lock``, taken as ``uv sync --locked`` does."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from danlu.environment.types import PythonPackages
from danlu.errors import ResolveError, Span
from danlu.resolve.python.request import PythonRequest
from danlu.sources.pypi.indexes import read_index_settings
from danlu.sources.pypi.platform_target import PlatformTarget
from tests.fakes.wheels import sha256_of
from tests.resolve.resolver import PythonResolver
from tests.resolve.test_uv_sources import PACKAGE, UvWorkspace, workspace

__all__ = ["workspace"]

APP = """
[project]
name = "app"
version = "1"
requires-python = ">=3.9"
dependencies = ["plain", "pinned", "leaf ; sys_platform == 'win32'"]
[project.optional-dependencies]
more = ["leaf>=2"]
[dependency-groups]
dev = ["leaf<2"]
[tool.uv]
conflicts = [[{ extra = "more" }, { group = "dev" }]]
[tool.uv.sources]
pinned = { index = "special" }
[[tool.uv.index]]
name = "special"
url = "index/special"
explicit = true
[[tool.uv.index]]
name = "main"
url = "index/main"
default = true
"""


@pytest.fixture(autouse=True)
def project_settings(own_settings: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only settings of uv are those of the project."""
    monkeypatch.delenv("UV_NO_CONFIG")
    monkeypatch.setenv("XDG_CONFIG_HOME", "/nonexistent")
    monkeypatch.setenv("XDG_CONFIG_DIRS", "/nonexistent")


@pytest.fixture
def app(workspace: UvWorkspace) -> UvWorkspace:
    """A project locked by uv, for which the index has newer versions since."""
    workspace.publish("main", "leaf", "1.5")
    (workspace.project / "pyproject.toml").write_text(APP)
    workspace.lock_with_uv()
    for name in ("plain", "leaf"):
        workspace.publish("main", name, "3.0")
    workspace.publish("special", "pinned", "3.0")
    return workspace


def request(app: UvWorkspace, *declared: PythonPackages, **more: object) -> PythonRequest:
    packages = declared or (app.declare(span=Span("build.envd", 3)),)
    indexes = read_index_settings(None, packages, app.project)
    plain = replace(app.resolver.request(), declared=packages, indexes=indexes)
    return replace(plain, **more)


def test_the_versions_and_files_are_those_of_the_lock(app: UvWorkspace) -> None:
    locked = app.resolver(request(app))
    assert app.resolver.pins(locked) == ["pinned==1.0", "plain==2.0"]
    wheel = app.project / "index/special/pinned/pinned-1.0-py3-none-any.whl"
    assert locked[0].sha256 == sha256_of(wheel)
    assert app.resolver(request(app), locked, upgrade_all=True) == locked


@pytest.mark.parametrize(
    ("more", "leaf"), [({"extras": ("more",)}, "leaf==2.0"), ({"groups": ("dev",)}, "leaf==1.5")]
)
def test_extras_and_groups_are_those_of_the_call(
    app: UvWorkspace, more: dict[str, object], leaf: str
) -> None:
    locked = app.resolver(request(app, app.declare(**more)))
    assert app.resolver.pins(locked) == [leaf, "pinned==1.0", "plain==2.0"]


def test_other_packages_are_added_and_fit(app: UvWorkspace) -> None:
    others = PythonPackages(names=("leaf", "plain>=1"))
    locked = app.resolver(request(app, app.declare(), others))
    assert app.resolver.pins(locked) == ["leaf==3.0", "pinned==1.0", "plain==2.0"]


def test_a_requirement_that_the_lock_does_not_fulfil_is_an_error(app: UvWorkspace) -> None:
    with pytest.raises(ResolveError, match=r"has plain 2\.0, but plain>2 is required") as caught:
        app.resolver(request(app, app.declare(), PythonPackages(names=("plain>2",))))
    assert "uv lock" in caught.value.hint


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ('"plain", ', '"plain>2", '),
        ('"plain", ', '"plain", "leaf", '),
        ('dev = ["leaf<2"]', 'dev = ["leaf<1.9"]'),
        ("explicit = true", "explicit = true\n[tool.uv.workspace]\nmembers = ['packages/*']"),
    ],
)
def test_a_lock_that_is_not_up_to_date_is_an_error(app: UvWorkspace, old: str, new: str) -> None:
    (app.project / "pyproject.toml").write_text(APP.replace(old, new, 1))
    with pytest.raises(ResolveError, match=r"uv\.lock is not up to date") as caught:
        app.resolver(request(app))
    assert caught.value.hint == "run `uv lock`"
    assert str(caught.value.span) == "build.envd:3"


@pytest.mark.parametrize("variable", ["UV_DEFAULT_INDEX", "UV_INDEX", "PIP_INDEX_URL"])
def test_indexes_of_this_machine_do_not_make_it_stale(
    app: UvWorkspace, monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.setenv(variable, "https://mirror.test/simple")
    assert app.resolver.pins(app.resolver(request(app))) == ["pinned==1.0", "plain==2.0"]


def test_a_lock_made_with_the_index_of_this_machine_is_up_to_date(
    app: UvWorkspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, _, _ = APP.partition('[[tool.uv.index]]\nname = "main"')
    (app.project / "pyproject.toml").write_text(head)
    url = (app.project / "index/main").as_uri()
    app.run_uv("lock", "--default-index", url, "--upgrade")
    monkeypatch.setenv("UV_DEFAULT_INDEX", url)
    assert app.resolver.pins(app.resolver(request(app))) == ["pinned==3.0", "plain==3.0"]


def test_a_python_that_the_lock_excludes_is_an_error(app: UvWorkspace) -> None:
    old = PlatformTarget("3.8.1", "glibc 2.36")
    with pytest.raises(ResolveError, match=r"uv\.lock requires Python >=3\.9"):
        app.resolver(request(app, target=old))


def test_a_lock_that_only_a_build_could_check_is_used_and_reported(app: UvWorkspace) -> None:
    dynamic = 'name = "app"\ndynamic = ["dependencies"]\n'
    system = '[build-system]\nrequires = ["absent-backend"]\nbuild-backend = "absent"\n'
    text = (
        (app.project / "uv.lock")
        .read_text()
        .replace('source = { virtual = "." }', 'source = { editable = "." }')
    )
    (app.project / "uv.lock").write_text(text)
    head, _, rest = APP.partition('name = "app"\n')
    rest = rest.replace("dependencies = [", "# dependencies = [", 1)
    (app.project / "pyproject.toml").write_text(head + dynamic + rest + system)
    reported: list[str] = []
    locked = app.resolver(request(app, report=reported.append))
    assert app.resolver.pins(locked) == ["pinned==1.0", "plain==2.0"]
    assert reported == ["cannot check whether uv.lock is up to date; its versions are used"]


def test_members_share_the_lock_of_their_workspace(workspace: UvWorkspace) -> None:
    root = (workspace.project / "pyproject.toml").read_text()
    workspace.write(
        "packages/plainer",
        PACKAGE.format("plainer", '["plain"]'),
    )
    workspace.write(
        "packages/virtual",
        root.partition("[project.opt")[0]
        .replace('"app"', '"virtual"')
        .replace('"member[more]", "virtual", ', ""),
    )
    workspace.lock_with_uv()
    declared = [
        PythonPackages(pyproject=f"packages/{name}/pyproject.toml")
        for name in ("plainer", "virtual")
    ]
    locked = workspace.resolver(request(workspace, *declared))
    assert workspace.resolver.pins(locked) == ["pinned==1.0", "plain==2.0"]


def test_members_and_directories_are_locked_as_directories(workspace: UvWorkspace) -> None:
    workspace.lock_with_uv()
    locked = workspace.resolver(request(workspace, workspace.declare(extras=("gpu",))))
    places = {p.name: (p.location, p.editable) for p in locked if p.source == "local"}
    assert places == {
        "chosen": ("libs/gpu", False),
        "directory": ("libs/directory", False),
        "inner": ("libs/inner", True),
        "member": ("packages/member", True),
    }
    assert all(package.sha256 for package in locked)


def test_full_addresses_in_the_project_stay_as_they_are(app: UvWorkspace) -> None:
    text = APP.replace('"index/', f'"{(app.project / "index").as_uri()}/')
    (app.project / "pyproject.toml").write_text(text)
    app.run_uv("lock", "--upgrade")
    assert app.resolver.pins(app.resolver(request(app))) == ["pinned==3.0", "plain==3.0"]


def test_two_locks_are_refused(app: UvWorkspace) -> None:
    (app.project / "pylock.toml").write_text("")
    declared = PythonPackages(requirements="pylock.toml")
    with pytest.raises(ResolveError, match="both lock a complete set"):
        app.resolver(request(app, app.declare(), declared))


def test_the_project_is_not_changed(app: UvWorkspace) -> None:
    def list_files() -> dict[Path, bytes]:
        return {p: p.read_bytes() for p in app.project.rglob("*") if p.is_file()}

    before = list_files()
    app.resolver(request(app))
    assert list_files() == before


def test_a_uv_lock_is_no_requirements_file(resolver: PythonResolver) -> None:
    (resolver.project / "uv.lock").write_text("version = 1\n")
    with pytest.raises(ResolveError, match="not a requirements file") as caught:
        resolver(resolver.request(requirements="uv.lock"))
    assert "pyproject=" in caught.value.hint
