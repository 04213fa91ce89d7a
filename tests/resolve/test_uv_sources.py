"""Sources in ``[tool.uv.sources]``, workspaces and named indexes, compared with uv's own lock."""

from __future__ import annotations

import os
import subprocess
import tomllib

import anyio
import pytest
from msgspec.structs import replace

from danlu.environment.types import PythonPackages
from danlu.errors import ResolveError, UsageError
from danlu.resolve.python.requirements import DeclaredRequirements, collect_requirements
from danlu.resolve.python.resolver import resolve_python
from danlu.sources.pypi.indexes import read_index_settings
from danlu.sources.pypi.requirements import declared_paths, list_absent_locks, list_editable_paths
from danlu.sources.pypi.uv import find_uv
from danlu.sources.pypi.uv_project import read_uv_project, remove_sources
from tests.fakes.wheels import make_wheel, sha256_of
from tests.resolve.resolver import DEBIAN, PYLOCK_HEAD, FakeResolveSandbox, PythonResolver

ROOT = """
[project]
name = "app"
version = "1"
requires-python = ">=3.9"
dependencies = ["member[more]", "virtual", "pinned>=1 ; python_version > '3'", "plain"]
[project.optional-dependencies]
gpu = ["chosen"]
cpu = ["chosen"]
[tool.uv]
conflicts = [[{ extra = "cpu" }, { extra = "gpu" }]]
[tool.uv.sources]
member = { workspace = true }
virtual = { workspace = true }
directory = { path = "libs/directory" }
pinned = { index = "special" }
chosen = [{ path = "libs/cpu", extra = "cpu" }, { path = "libs/gpu", extra = "gpu" }]
[tool.uv.workspace]
members = ["packages/*"]
[[tool.uv.index]]
name = "special"
url = "SPECIAL"
explicit = true
[[tool.uv.index]]
name = "main"
url = "MAIN"
default = true
"""
PACKAGE = '[project]\nname = "{0}"\nversion = "1"\nrequires-python = ">=3.9"\ndependencies = {1}\n'
MORE = '[project.optional-dependencies]\nmore = ["inner"]\n'
INNER = '[tool.uv.sources]\ninner = { path = "../../libs/inner", editable = true }\n'


class UvWorkspace:
    """A workspace with two indexes, and a build file's declaration of it."""

    def __init__(self, resolver: PythonResolver) -> None:
        self.resolver = resolver
        self.project = resolver.project
        for index in ("main", "special"):
            for name in ("pinned", "plain", "leaf"):
                version = {"main": "2.0", "special": "1.0"}[index]
                self.publish(index, name, version)
        text = ROOT.replace("SPECIAL", "index/special").replace("MAIN", "index/main")
        self.write(".", text)
        self.write("packages/member", PACKAGE.format("member", '["directory"]') + MORE + INNER)
        virtual = PACKAGE.format("virtual", '["leaf", "pinned"]') + "[tool.uv]\npackage = false\n"
        self.write("packages/virtual", virtual)
        for name in ("directory", "inner"):
            self.write(f"libs/{name}", PACKAGE.format(name, "[]"))
        for name in ("cpu", "gpu"):
            self.write(f"libs/{name}", PACKAGE.format("chosen", "[]"))

    def write(self, directory: str, text: str) -> None:
        place = self.project / directory
        place.mkdir(parents=True, exist_ok=True)
        (place / "pyproject.toml").write_text(text)

    def publish(self, index: str, name: str, version: str) -> None:
        page = self.project / "index" / index / name
        page.mkdir(parents=True, exist_ok=True)
        make_wheel(page, name, version, {f"{name}.py": index})
        links = [f'<a href="{w.name}#sha256={sha256_of(w)}">w</a>' for w in page.glob("*.whl")]
        (page / "index.html").write_text(f"<!DOCTYPE html><body>{''.join(links)}</body>")

    def declare(self, **more: object) -> PythonPackages:
        return PythonPackages(pyproject="pyproject.toml", **more)  # type: ignore[arg-type]

    def collect(self, declared: PythonPackages | None = None) -> DeclaredRequirements:
        return collect_requirements([declared or self.declare()], self.project, DEBIAN)

    def sources(self, declared: PythonPackages | None = None) -> list[tuple[str, str, bool]]:
        """Return name, place and whether it is editable, of what is not on an index."""
        return sorted(
            (source.reference.name, source.reference.location, source.editable)
            for source in self.collect(declared).sources
        )

    def lock_with_uv(self) -> None:
        self.run_uv("lock")

    def run_uv(self, *words: str) -> None:
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("UV_", "PIP_"))}
        subprocess.run(
            [str(find_uv()), *words, "--quiet", "--no-cache", "--no-build"],
            cwd=self.project,
            env={**environment, "UV_NO_SYSTEM_CONFIG": "1", "XDG_CONFIG_HOME": "/nonexistent"},
            check=True,
        )

    def export_with_uv(self, *options: str) -> list[dict[str, object]]:
        self.lock_with_uv()
        self.run_uv(
            *("export", "--frozen", "--no-emit-project", "--no-default-groups", *options),
            *("--format", "pylock.toml", "-o", "pylock.toml"),
        )
        (self.project / "uv.lock").unlink()
        path = self.project / "pylock.toml"
        packages = tomllib.loads(path.read_text())["packages"]
        path.unlink()
        return list(packages)


@pytest.fixture
def workspace(resolver: PythonResolver) -> UvWorkspace:
    return UvWorkspace(resolver)


@pytest.mark.parametrize("extra", ["cpu", "gpu"])
def test_what_is_not_on_an_index_is_what_uv_locks(workspace: UvWorkspace, extra: str) -> None:
    listed = workspace.export_with_uv("--extra", extra)
    expected = sorted(
        (str(package["name"]), str(entry["path"]), bool(entry.get("editable")))
        for package in listed
        if isinstance(entry := package.get("directory"), dict)
    )
    assert [name for name, _, _ in expected] == ["chosen", "directory", "inner", "member"]
    assert workspace.sources(workspace.declare(extras=(extra,))) == expected


def test_a_package_comes_from_the_index_that_its_source_names(workspace: UvWorkspace) -> None:
    """uv is asked for the versions, with both indexes holding every package."""
    declared = [PythonPackages(requirements="sub/pyproject.toml")]
    workspace.write(
        "sub",
        workspace.project.joinpath("pyproject.toml")
        .read_text()
        .replace('"member[more]", "virtual", ', "")
        .replace("index/", "../index/"),
    )
    indexes = read_index_settings(None, declared, workspace.project)
    request = replace(workspace.resolver.request(), declared=declared, indexes=indexes)
    locked = workspace.resolver(request)
    assert workspace.resolver.pins(locked) == ["pinned==1.0", "plain==2.0"]
    again = workspace.resolver(request, locked)
    assert again == locked, "kept, although the default index has a newer version"
    (package,) = (package for package in locked if package.name == "pinned")
    wheel = next((workspace.project / "index/special/pinned").glob("*.whl"))
    assert package.sha256 == sha256_of(wheel)
    newer = workspace.resolver(request, (), upgrade_all=True)
    assert newer == locked


def test_a_package_without_source_never_comes_from_an_explicit_index(
    workspace: UvWorkspace,
) -> None:
    workspace.publish("special", "plain", "9.0")
    settings = read_index_settings(None, [workspace.declare()], workspace.project)
    assert [index.name for index in settings.named] == ["special", "main"]
    assert settings.first == settings.extra == (), "uv's own settings have the others"


def test_the_sandbox_gets_sources_as_copies_and_indexes_by_name(workspace: UvWorkspace) -> None:
    declared = [workspace.declare()]
    directory = "[[packages]]\nname = '{0}'\nversion = '1'\ndirectory = {{ path = '{1}' }}\n"
    names = ["member", "inner", "directory"]
    sources = {source.reference.name: n for n, source in enumerate(workspace.collect().sources)}
    pylock = PYLOCK_HEAD + "".join(
        directory.format(name, f"/run/danlu/sources/{sources[name]}/tree") for name in names
    )
    sandbox = FakeResolveSandbox("", pylock)
    request = replace(
        workspace.resolver.request(),
        declared=declared,
        indexes=read_index_settings(None, declared, workspace.project),
        run_in_sandbox=sandbox,
    )
    locked = anyio.run(resolve_python, request)
    assert [(package.name, package.editable) for package in locked] == [
        ("directory", False),
        ("inner", True),
        ("member", True),
    ]
    pins = tomllib.loads(sandbox.files["pyproject.toml"])
    assert pins["tool"]["uv"]["sources"] == {"pinned": {"index": "special"}}
    (index,) = pins["tool"]["uv"]["index"]
    assert index["explicit"] is True
    assert index["url"].startswith("file:///run/danlu/indexes/")
    assert sandbox.files["virtual.txt"] == "virtual\n"
    assert sandbox.environment["SOURCES"] == "--no-sources-package inner"
    assert sandbox.environment["PINS"] == "pyproject.toml"


def test_a_directory_of_the_build_file_is_followed_too(workspace: UvWorkspace) -> None:
    """``-e ./packages/member`` needs what its own sources and those of the workspace name."""
    names = PythonPackages(names=("-e ./packages/member[more]",))
    assert workspace.sources(names) == [
        ("", "packages/member", True),
        ("directory", "libs/directory", False),
        ("inner", "libs/inner", True),
    ]


def test_a_source_of_a_dependency_group_counts_too(workspace: UvWorkspace) -> None:
    file = workspace.project / "pyproject.toml"
    source = 'grouped = { path = "libs/grouped" }\npinned = {'
    text = file.read_text().replace("pinned = {", source, 1)
    file.write_text(f'[dependency-groups]\ndev = ["grouped"]\n{text}')
    (workspace.project / "libs/grouped").mkdir()
    (workspace.project / "libs/grouped/pyproject.toml").write_text(PACKAGE.format("grouped", []))
    paths = declared_paths([workspace.declare()], workspace.project)
    assert workspace.project / "libs/grouped" in paths


def test_a_change_of_any_file_that_decides_makes_the_lock_stale(workspace: UvWorkspace) -> None:
    declared = [workspace.declare()]
    places = {
        os.path.relpath(path, workspace.project)
        for path in declared_paths(declared, workspace.project)
    }
    assert {"pyproject.toml", "packages/member", "packages/virtual", "libs/inner"} <= places
    in_place = list_editable_paths(declared, workspace.project)
    assert workspace.project / "packages/member" in in_place
    assert workspace.project / "libs/directory" not in in_place
    assert list_absent_locks(declared, workspace.project) == ("uv.lock",)
    workspace.lock_with_uv()
    assert workspace.project / "uv.lock" in declared_paths(declared, workspace.project)
    assert list_absent_locks(declared, workspace.project) == ()


SOURCE = '[project]\nname = "app"\ndependencies = ["lib>=1"]\n[tool.uv.sources]\nlib = {0}\n'


@pytest.mark.parametrize(
    ("source", "kind", "location", "reference", "subdirectory"),
    [
        ('{ git = "https://h.test/r" }', "git", "https://h.test/r", "", ""),
        (
            '{ git = "https://h.test/r", rev = "a/b", subdirectory = "s" }',
            *("git", "https://h.test/r", "a/b", "s"),
        ),
        ('{ git = "ssh://git@h.test/r", tag = "v1" }', "git", "ssh://git@h.test/r", "v1", ""),
        ('{ git = "https://h.test/r", branch = "b" }', "git", "https://h.test/r", "b", ""),
        (
            '{ url = "https://h.test/lib-1.tar.gz" }',
            "archive",
            "https://h.test/lib-1.tar.gz",
            "",
            "",
        ),
        (
            '{ url = "https://h.test/lib-1.zip", subdirectory = "s" }',
            "archive",
            "https://h.test/lib-1.zip",
            "",
            "s",
        ),
        (
            "[{ path = 'no', marker = \"sys_platform == 'win32'\" }, { git = 'https://h.test/r' }]",
            "git",
            "https://h.test/r",
            "",
            "",
        ),
    ],
)
def test_a_location_replaces_the_version(
    resolver: PythonResolver,
    source: str,
    kind: str,
    location: str,
    reference: str,
    subdirectory: str,
) -> None:
    (resolver.project / "pyproject.toml").write_text(SOURCE.format(source))
    declared = [PythonPackages(pyproject="pyproject.toml")]
    wanted = collect_requirements(declared, resolver.project, DEBIAN)
    assert wanted.lines == ()
    (found,) = (item.reference for item in wanted.sources)
    assert (found.kind, found.location, found.reference, found.subdirectory) == (
        kind,
        location,
        reference,
        subdirectory,
    )


def test_without_an_applicable_source_the_index_is_used(resolver: PythonResolver) -> None:
    source = "{ path = 'no', marker = \"sys_platform == 'win32'\" }"
    (resolver.project / "pyproject.toml").write_text(SOURCE.format(source))
    declared = [PythonPackages(pyproject="pyproject.toml")]
    wanted = collect_requirements(declared, resolver.project, DEBIAN)
    assert [line.text for line in wanted.lines] == ["lib>=1"]


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{ path = '../lib' }", "outside the project"),
        ("{ path = 'lib' }", "the source of lib not found: lib"),
        ("{ workspace = true }", "the workspace has no such member"),
        ("{ index = 'x' }", "which is not in"),
        ("{ git = 'https://h.test/r', lfs = true }", "not supported: Object contains unknown"),
        ("{ git = 'https://h.test/r', url = 'https://h.test/x.zip' }", "must be one of"),
        ("{ marker = 'x' }", "must be one of"),
        ("{ git = 'https://h.test/r', tag = 'a', rev = 'b' }", "at most one of"),
        ("{ git = 'https://h.test/r', subdirectory = '../x' }", "a subdirectory outside it"),
        ("{ git = 'https://h.test/r', marker = 'x' }", "invalid marker 'x'"),
        ("{ git = 'file:///etc' }", "outside the project"),
        ("{ url = 'https://h.test/r.git' }\nx = 3", "the source of x"),
        ("'lib'", "the source of lib"),
    ],
)
def test_a_source_that_cannot_be_used_is_one_error(
    resolver: PythonResolver, source: str, message: str
) -> None:
    (resolver.project / "pyproject.toml").write_text(SOURCE.format(source))
    with pytest.raises(UsageError) as caught:
        resolver(resolver.request(pyproject="pyproject.toml", line=4))
    assert message in caught.value.message
    assert str(caught.value.span) == "build.envd:4"


def test_sources_of_a_workspace_above_the_project_are_not_lost(resolver: PythonResolver) -> None:
    root = '[tool.uv.workspace]\nmembers = ["project"]\n[tool.uv.sources]\nlib = { git = "u" }\n'
    (resolver.root / "pyproject.toml").write_text(root)
    text = '[project]\nname = "app"\ndependencies = ["lib"]\n'
    (resolver.project / "pyproject.toml").write_text(text)
    with pytest.raises(ResolveError, match="its source of lib cannot be used"):
        resolver(resolver.request(pyproject="pyproject.toml"))
    (resolver.project / "pyproject.toml").write_text(text.replace("lib", "other"))
    read_uv_project(resolver.project / "pyproject.toml", resolver.project)


def test_settings_of_uv_elsewhere_that_decide_versions_are_refused(
    resolver: PythonResolver,
) -> None:
    (resolver.project / "sub").mkdir()
    text = '[project]\nname = "app"\n[tool.uv]\noverride-dependencies = ["six<1"]\n'
    (resolver.project / "sub/pyproject.toml").write_text(text)
    with pytest.raises(ResolveError, match="override-dependencies is not used"):
        resolver(resolver.request(pyproject="sub/pyproject.toml"))


def test_a_repository_with_sources_of_its_own_is_refused_unless_they_are_named(
    resolver: PythonResolver,
) -> None:
    repository = resolver.project / "repository"
    repository.mkdir()
    text = '[project]\nname = "lib"\nversion = "1"\ndependencies = ["far"]\n'
    source = '[tool.uv.sources]\nfar = { git = "https://h.test/far" }\n'
    (repository / "pyproject.toml").write_text(text + source)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b", "-C", str(repository)]
    for words in (["init", "-q"], ["add", "-A"], ["commit", "-qm", "x"]):
        subprocess.run([*git, *words], check=True)
    address = repository.as_uri()
    (resolver.project / "pyproject.toml").write_text(SOURCE.format(f'{{ git = "{address}" }}'))
    sandbox = FakeResolveSandbox("", PYLOCK_HEAD)
    request = replace(resolver.request(pyproject="pyproject.toml"), run_in_sandbox=sandbox)
    with pytest.raises(ResolveError, match="takes far from") as caught:
        resolver(request)
    assert "name far among the dependencies" in caught.value.hint
    (resolver.project / "libs/far").mkdir(parents=True)
    named = SOURCE.format(f'{{ git = "{address}" }}').replace('"lib>=1"', '"lib", "far"')
    (resolver.project / "pyproject.toml").write_text(named + 'far = { path = "libs/far" }\n')
    resolver(request)
    assert "far @ file:///run/danlu/sources" in sandbox.requirements


def test_two_indexes_of_one_name_are_refused(workspace: UvWorkspace) -> None:
    inner = PACKAGE.format("inner", '["leaf"]') + '[tool.uv.sources]\nleaf = { index = "main" }\n'
    index = '[[tool.uv.index]]\nname = "main"\nurl = "https://h.test/simple"\n'
    workspace.write("libs/inner", inner + index)
    with pytest.raises(ResolveError, match=r"two indexes .* have the name 'main'"):
        read_index_settings(None, [workspace.declare()], workspace.project)


@pytest.mark.parametrize(
    "text",
    [
        '[tool.uv.sources]\na = { path = "x" }\n',
        '[tool.uv]\npackage = true\n[tool.uv.sources]\na = [\n  { path = "x" },\n]\n[x]\ny = 1\n',
        '[tool.uv.sources.a]\npath = "x"\n[[tool.uv.sources.b]]\npath = "y"\n[x]\n',
        '[ tool . uv . sources ]\na = { path = "x" }\n[project]\nname = "[tool.uv.sources]"\n',
    ],
)
def test_sources_are_removed_and_nothing_else(text: str) -> None:
    left = tomllib.loads(remove_sources(text))
    expected = tomllib.loads(text)
    del expected["tool"]["uv"]["sources"]
    assert {**left, "tool": {"uv": left.get("tool", {}).get("uv", {})}} == expected


def test_inline_sources_cannot_be_removed() -> None:
    with pytest.raises(ResolveError, match="their own table"):
        remove_sources('[tool.uv]\nsources = { a = { path = "x" } }\n')
