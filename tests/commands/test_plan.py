"""The plan of a project: from the build file and the lock alone, and why a build would do what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from danlu.commands.build import parse_platform
from danlu.commands.plan import Plan, plan
from danlu.commands.project import Project
from danlu.commands.settings import Settings, load_settings
from danlu.environment.lock import (
    FunctionLock,
    Lock,
    LockedBase,
    LockedPackage,
    LockedPython,
    LockedSystem,
)
from danlu.environment.needs import base_inputs, packages_inputs, python_inputs, system_inputs
from danlu.errors import UsageError
from danlu.graph import Deb
from danlu.util.paths import Paths

FILE = """\
def build():
    base(os="debian12")
    install.python("3.11")
    install.apt_packages(["git"])
    install.python_packages(["numpy", "einops"])
    run(["make data"])
"""


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(Paths.of({"DANLU_HOME": str(tmp_path / "home")}))


def project(directory: Path, text: str = FILE) -> Project:
    (directory / "build.envd").write_text(text)
    return Project.open(None, directory=directory)


def deb(name: str) -> Deb:
    return Deb(name, "1.0", "amd64", "0" * 64, 1000, "bookworm", f"pool/{name}.deb")


def package(name: str, version: str = "1.0") -> LockedPackage:
    return LockedPackage(
        name,
        version,
        "index",
        f"{name}-{version}-py3-none-any.whl",
        f"{hash(name) % 10**9:064x}",
        77,
    )


def locked(opened: Project, *packages: LockedPackage) -> None:
    """Write a lock that fits, with these Python packages."""
    environment, platform = opened.environment(), parse_platform("")
    inputs = opened.inputs(environment)
    base = LockedBase(
        inputs=base_inputs(environment, platform),
        epoch=1,
        distribution="debian12",
        codename="bookworm",
        libc="glibc 2.36",
        packages=(deb("bash"), deb("dpkg")),
    )
    python = LockedPython(python_inputs(environment, base), "3.11.2", "/usr/bin/python3.11", "apt")
    opened.write_lock(
        Lock(
            {
                "build": FunctionLock(
                    platform=str(platform),
                    base=base,
                    python=python,
                    system=LockedSystem(
                        system_inputs(environment, base, python), (deb("git"),), ("git",)
                    ),
                    packages_inputs=packages_inputs(environment, base, python, inputs),
                    packages=packages,
                )
            }
        )
    )


def by_name(planned: Plan) -> dict[str, Any]:
    return {one.name: one for one in planned.vertices}


def test_without_a_lock_what_only_a_lock_can_tell_is_unresolved(
    tmp_path: Path, settings: Settings
) -> None:
    planned = plan(project(tmp_path), settings=settings)
    assert planned.lock == "missing"
    unresolved = {one.branch for one in planned.vertices if one.unresolved}
    assert unresolved == {"base", "system", "python"}
    (step,) = [one for one in planned.vertices if one.kind == "Exec"]
    assert step.lines == ("build.envd:6:5",)


def test_with_a_lock_everything_has_its_version_and_line(
    tmp_path: Path, settings: Settings
) -> None:
    opened = project(tmp_path)
    locked(opened, package("numpy"), package("einops"))
    planned = plan(Project.open(None, directory=tmp_path), settings=settings)
    assert (planned.lock, planned.stale) == ("fits", "")
    assert not any(one.unresolved for one in planned.vertices)
    assert by_name(planned)["numpy 1.0"].lines == ("build.envd:5:5",)


def test_a_changed_line_makes_the_lock_stale(tmp_path: Path, settings: Settings) -> None:
    locked(project(tmp_path), package("numpy"))
    changed = project(tmp_path, FILE.replace('"einops"', '"rich"'))
    planned = plan(changed, settings=settings)
    assert planned.stale == "Python packages"
    (unresolved,) = [one for one in planned.vertices if one.unresolved]
    assert {"numpy", "rich"} <= set(unresolved.describes)
    assert "base debian12 (2 packages)" in by_name(planned)
    other_base = project(tmp_path, FILE.replace("debian12", "debian13"))
    planned = plan(other_base, settings=settings)
    assert (planned.lock, planned.stale) == ("stale", "base")
    assert any(one.unresolved for one in planned.vertices)


def test_what_this_version_does_not_build_is_in_the_plan(
    tmp_path: Path, settings: Settings
) -> None:
    text = FILE + "    install.julia()\n    runtime.expose(8000)\n"
    planned = plan(project(tmp_path, text), settings=settings)
    assert any(one.kind == "Unbuilt" for one in planned.vertices)
    assert planned.at_start == ("runtime.expose",)


def test_a_plan_writes_nothing(tmp_path: Path, settings: Settings) -> None:
    plan(project(tmp_path), settings=settings, why=True)
    assert not settings.paths.data.exists()
    assert {one.name for one in tmp_path.iterdir()} == {"build.envd"}


def test_a_file_that_is_not_there_is_an_error_with_its_line(
    tmp_path: Path, settings: Settings
) -> None:
    text = FILE + '    io.copy("missing.txt", "/x")\n'
    with pytest.raises(UsageError) as caught:
        plan(project(tmp_path, text), settings=settings)
    assert caught.value.span is not None
    assert caught.value.span.line == 7


class Built:
    """A store in which this project was built once, without building anything."""

    def __init__(self, settings: Settings, opened: Project) -> None:
        from danlu.store import Store

        self.settings, self.opened = settings, opened
        self.store = Store.open(settings.paths.store)
        settings.paths.store.mkdir(parents=True, exist_ok=True)

    def build(self) -> None:
        """Give every vertex a layer and a record, and remember the build."""
        from danlu.assemble import assemble
        from danlu.builder.embedded.keys import definition_key, stack_key
        from danlu.commands.forecast import _merged, _State
        from danlu.graph import Merge

        opened = Project.open(None, directory=self.opened.directory)
        environment = opened.environment()
        section = opened.lock.functions["build"]
        graph = assemble(
            environment, section, opened.inputs(environment), platform=parse_platform("")
        )
        state = _State(self.store, {}, frozenset(), {})
        for vertex in graph.walk():
            if isinstance(vertex.op, Merge):
                state.stacks[vertex.digest] = _merged(vertex, state)
                continue
            below = state.stacks[vertex.inputs[0].digest] if vertex.inputs else ()
            assert below is not None
            key = definition_key(vertex)
            layer = self.layer(vertex.name)
            self.store.put_record(
                key or stack_key(vertex.op, below),
                {"layers": [layer.diff_id]},
                layers=[layer.diff_id],
            )
            state.stacks[vertex.digest] = (*(below if key is None else ()), layer)
        self.store.put_record(
            f"last-build:{opened.directory}:build",
            {
                "vertices": [
                    {"name": one.name, "digest": one.digest, "spans": []} for one in graph.walk()
                ]
            },
        )

    def layer(self, text: str) -> Any:
        from danlu.oci.tar import Normalise, write_layer

        normalise = Normalise(mtime=1)
        with self.store.staging() as staged:
            (staged / "file").write_text(text)
            summary = write_layer(staged, None, normalise=normalise)
            return self.store.commit_layer(staged, summary, created_by=text, normalise=normalise)


def forecasts(directory: Path, settings: Settings) -> dict[str, Any]:
    planned = plan(Project.open(None, directory=directory), settings=settings, why=True)
    return {one.name: one.forecast for one in planned.vertices if one.forecast is not None}


@pytest.fixture
def built(tmp_path: Path, settings: Settings) -> Path:
    opened = project(tmp_path)
    locked(opened, package("numpy"), package("einops"))
    Built(settings, opened).build()
    return tmp_path


def test_why_says_never_built_before_the_first_build(tmp_path: Path, settings: Settings) -> None:
    locked(project(tmp_path), package("numpy"))
    found = forecasts(tmp_path, settings)
    assert found["numpy 1.0"].state == "build"
    assert found["numpy 1.0"].why == "never built here (build.envd:5:5)"
    assert found["numpy 1.0"].download == 77
    assert found["base debian12 (2 packages)"].download == 2000


def test_why_finds_everything_cached_after_a_build(built: Path, settings: Settings) -> None:
    found = forecasts(built, settings)
    assert {one.state for one in found.values()} == {"cached"}
    assert all(one.size > 0 for one in found.values())


def test_why_names_the_line_that_is_new(built: Path, settings: Settings) -> None:
    opened = project(built, FILE.replace('"make data"', '"make other"'))
    found = forecasts(built, settings)
    building = {name: one for name, one in found.items() if one.state != "cached"}
    assert list(building) == ["run make other"]
    assert building["run make other"].why == "new since the last build (build.envd:6:5)"
    assert opened.file == "build.envd"


def test_why_tells_the_version_that_a_package_had(built: Path, settings: Settings) -> None:
    locked(project(built), package("numpy", "2.0"), package("einops"))
    found = forecasts(built, settings)
    assert found["numpy 2.0"].why == "was 1.0 (build.envd:5:5)"
    assert found["einops 1.0"].state == "cached"
    assert found["run make data"].state == "maybe"
    assert found["run make data"].why == "stands on numpy 2.0"


def test_why_says_of_steps_that_they_stand_on_what_is_not_resolved(
    built: Path, settings: Settings
) -> None:
    project(built, FILE.replace('"einops"', '"einops", "rich"'))
    found = forecasts(built, settings)
    assert found["run make data"].state == "maybe"
    assert found["run make data"].why == "stands on 4 Python requirements"
    project(built, FILE.replace('["git"]', '["git", "curl"]'))
    found = forecasts(built, settings)
    assert found["base debian12 (2 packages)"].state == "cached"
    assert found["run make data"].state == "maybe"


def test_why_tells_that_layers_are_gone(built: Path, settings: Settings) -> None:
    from danlu.store import Store

    with Store.open(settings.paths.store) as store:
        store.collect(0)
        vertices = [
            {"name": one.name, "digest": one.digest, "spans": []}
            for one in plan(Project.open(None, directory=built), settings=settings).vertices
        ]
        store.put_record(f"last-build:{built}:build", {"vertices": vertices})
    found = forecasts(built, settings)
    assert "no longer in the store" in found["numpy 1.0"].why


def test_a_plan_is_plain_data(tmp_path: Path, settings: Settings) -> None:
    planned = plan(project(tmp_path), settings=settings, why=True)
    assert msgspec.structs.asdict(planned)["function"] == "build"
