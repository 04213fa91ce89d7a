"""The plan of a project from its build file and lock, and the reasons for each step."""

from __future__ import annotations

import dataclasses
import hashlib
from pathlib import Path
from typing import Any

import msgspec
import pytest

from danlu.assemble.assemble import assemble
from danlu.engine.settings import Settings, load_settings
from danlu.environment.lock import (
    FunctionLock,
    Lock,
    LockedBase,
    LockedPackage,
    LockedPython,
    LockedSetting,
    LockedSystem,
)
from danlu.environment.requirements import (
    digest_base_inputs,
    digest_package_inputs,
    digest_python_inputs,
    digest_system_inputs,
)
from danlu.errors import LockError, UsageError
from danlu.graph.ops import DebPackage, Platform
from danlu.project.plan import PlanReport, plan_build
from danlu.project.project import Project
from danlu.sandbox.emulation import host_platform
from danlu.util.paths import Paths

FILE = """\
def build():
    base(os="debian12")
    install.python("3.11")
    install.apt_packages(["git"])
    install.python_packages(["numpy", "einops"])
    run(["make data"])
"""


FOREIGN = Platform(architecture="amd64" if host_platform().architecture == "arm64" else "arm64")


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(Paths.of({"DANLU_HOME": str(tmp_path / "home")}))


def project(directory: Path, text: str = FILE) -> Project:
    (directory / "build.envd").write_text(text)
    return Project.open(None, directory=directory)


def deb(name: str) -> DebPackage:
    return DebPackage(name, "1.0", "amd64", "0" * 64, 1000, "bookworm", f"pool/{name}.deb")


def package(name: str, version: str = "1.0") -> LockedPackage:
    return LockedPackage(
        name,
        version,
        "index",
        f"{name}-{version}-py3-none-any.whl",
        hashlib.sha256(name.encode()).hexdigest(),
        77,
    )


def write_lock(
    opened: Project, *packages: LockedPackage, platforms: tuple[Platform, ...] = ()
) -> None:
    """Write a matching lock with these Python packages, for this machine's platform by default."""
    lock = Lock()
    for platform in platforms or (host_platform(),):
        lock = lock.replace_function("build", make_lock(opened, platform, packages))
    opened.lock_file.write(lock)


def make_lock(
    opened: Project, platform: Platform, packages: tuple[LockedPackage, ...]
) -> FunctionLock:
    environment = opened.environment()
    inputs = opened.inputs(environment)
    base = LockedBase(
        inputs=digest_base_inputs(environment, platform),
        epoch=1,
        distribution="debian12",
        codename="bookworm",
        libc="glibc 2.36",
        packages=(deb("bash"), deb("dpkg")),
    )
    python = LockedPython(
        digest_python_inputs(environment, base), "3.11.2", "/usr/bin/python3.11", "apt"
    )
    return FunctionLock(
        platform=str(platform),
        base=base,
        python=python,
        system=LockedSystem(
            digest_system_inputs(environment, base, python), (deb("git"),), ("git",)
        ),
        packages_inputs=digest_package_inputs(environment, base, python, inputs),
        packages=packages,
    )


def by_name(planned: PlanReport) -> dict[str, Any]:
    return {vertex.name: vertex for vertex in planned.vertices}


def test_plan_without_a_lock_is_unresolved(tmp_path: Path, settings: Settings) -> None:
    plan = plan_build(project(tmp_path), settings=settings)
    assert plan.lock == "missing"
    unresolved = {vertex.branch for vertex in plan.vertices if vertex.needs_lock}
    assert unresolved == {"base", "system", "python"}
    (step,) = [vertex for vertex in plan.vertices if vertex.kind == "Exec"]
    assert step.lines == ("build.envd:6:5",)


def test_plan_with_a_lock_has_versions_and_lines(tmp_path: Path, settings: Settings) -> None:
    opened = project(tmp_path)
    write_lock(opened, package("numpy"), package("einops"))
    plan = plan_build(Project.open(None, directory=tmp_path), settings=settings)
    assert (plan.lock, plan.stale) == ("fits", "")
    assert not any(vertex.needs_lock for vertex in plan.vertices)
    assert by_name(plan)["numpy 1.0"].lines == ("build.envd:5:5",)


def test_plan_has_the_settings_that_restricted_the_packages(
    tmp_path: Path, settings: Settings
) -> None:
    opened = project(tmp_path)
    locked = make_lock(opened, host_platform(), (package("numpy"),))
    constraint = LockedSetting("constraint", "numpy<2", "pip's configuration", "numpy")
    locked = msgspec.structs.replace(locked, package_settings=(constraint,))
    opened.lock_file.write(Lock().replace_function("build", locked))
    plan = plan_build(Project.open(None, directory=tmp_path), settings=settings)
    assert plan.lock == "fits"
    assert [str(item) for item in plan.package_settings] == [
        "constraint: numpy<2 (pip's configuration)"
    ]


@pytest.mark.parametrize("argument", ['constraints=["urllib3<2"]', 'torch_backend="cpu"'])
def test_an_argument_that_decides_versions_makes_the_lock_stale(
    tmp_path: Path, settings: Settings, argument: str
) -> None:
    write_lock(project(tmp_path), package("numpy"))
    text = FILE.replace("install.python_packages(", f"install.python_packages({argument}, name=")
    assert text != FILE
    plan = plan_build(project(tmp_path, text), settings=settings)
    assert (plan.lock, plan.stale) == ("stale", "Python packages")


def test_changed_line_makes_the_lock_stale(tmp_path: Path, settings: Settings) -> None:
    write_lock(project(tmp_path), package("numpy"))
    changed = project(tmp_path, FILE.replace('"einops"', '"rich"'))
    plan = plan_build(changed, settings=settings)
    assert plan.stale == "Python packages"
    (unresolved,) = [vertex for vertex in plan.vertices if vertex.needs_lock]
    assert {"numpy", "rich"} <= set(unresolved.describes)
    assert "base debian12 (2 packages)" in by_name(plan)
    other_base = project(tmp_path, FILE.replace("debian12", "debian13"))
    plan = plan_build(other_base, settings=settings)
    assert (plan.lock, plan.stale) == ("stale", "base")
    assert any(vertex.needs_lock for vertex in plan.vertices)


def test_plan_of_another_platform_is_the_graph_that_a_build_solves(
    tmp_path: Path, settings: Settings
) -> None:
    opened = project(tmp_path)
    write_lock(opened, package("numpy"), package("einops"), platforms=(host_platform(), FOREIGN))
    opened = Project.open(None, directory=tmp_path)
    plan = plan_build(opened, settings=settings, platform=str(FOREIGN))
    assert (plan.platform, plan.lock) == (str(FOREIGN), "fits")
    environment = opened.environment()
    built = assemble(
        environment,
        opened.lock.find("build", FOREIGN),
        opened.inputs(environment),
        platform=FOREIGN,
        tools=opened.lock.find("build", host_platform()),
    )
    assert plan.digest == built.digest
    kinds = {vertex.name: vertex.kind for vertex in plan.vertices}
    assert kinds["apt git"] == "ForeignAptInstall"
    assert kinds[f"apt git for {host_platform()}"] == "AptInstall"


def test_plan_of_a_platform_that_is_not_locked(tmp_path: Path, settings: Settings) -> None:
    opened = project(tmp_path)
    write_lock(opened)
    plan = plan_build(
        Project.open(None, directory=tmp_path), settings=settings, platform=str(FOREIGN)
    )
    assert plan.lock == "missing"
    assert plan.locked_platforms == (str(host_platform()),)
    assert plan.lock_command == f"danlu lock --platform {FOREIGN}"


def test_plan_of_another_platform_needs_the_lock_of_this_one(
    tmp_path: Path, settings: Settings
) -> None:
    opened = project(tmp_path)
    write_lock(opened, platforms=(FOREIGN,))
    plan = plan_build(
        Project.open(None, directory=tmp_path), settings=settings, platform=str(FOREIGN)
    )
    assert (plan.lock, plan.stale) == ("stale", f"everything for {host_platform()}")


def test_plan_lists_functions_that_act_at_start(tmp_path: Path, settings: Settings) -> None:
    text = FILE + "    config.gpu(1)\n    runtime.expose(8000)\n"
    plan = plan_build(project(tmp_path, text), settings=settings)
    assert plan.at_start == ("config.gpu", "runtime.expose")


def test_plan_writes_nothing(tmp_path: Path, settings: Settings) -> None:
    plan_build(project(tmp_path), settings=settings)
    assert not settings.paths.data.exists()
    assert {path.name for path in tmp_path.iterdir()} == {"build.envd"}


def test_missing_file_is_an_error_with_its_line(tmp_path: Path, settings: Settings) -> None:
    text = FILE + '    io.copy("missing.txt", "/x")\n'
    with pytest.raises(UsageError) as caught:
        plan_build(project(tmp_path, text), settings=settings)
    assert caught.value.span is not None
    assert caught.value.span.line == 7


class RecordedBuild:
    """A store that records one build of this project, without building anything."""

    def __init__(self, settings: Settings, opened: Project) -> None:
        from danlu.store import Store

        self.settings, self.opened = settings, opened
        self.store = Store.open(settings.paths.store)
        settings.paths.store.mkdir(parents=True, exist_ok=True)

    def build(self) -> None:
        """Store a layer and a record for every vertex, and record the build."""
        from danlu.assemble.assemble import assemble
        from danlu.builder.embedded.context import (
            VertexResult,
            definition_key,
            make_cached_result,
            merge_results,
            stack_key,
        )
        from danlu.graph.ops import Merge

        opened = Project.open(None, directory=self.opened.directory)
        environment = opened.environment()
        section = opened.lock.functions["build"]
        graph = assemble(environment, section, opened.inputs(environment), platform=host_platform())
        results: dict[str, VertexResult] = {}
        for vertex in graph.walk():
            inputs = [results[below.digest] for below in vertex.inputs]
            if isinstance(vertex.op, Merge):
                results[vertex.digest] = merge_results(inputs)
                continue
            key = definition_key(vertex) or stack_key(vertex.op, inputs)
            layer = self.layer(vertex.name)
            record = {"layers": [layer.diff_id]}
            self.store.put_record(key, record, layers=[layer.diff_id])
            results[vertex.digest] = make_cached_result(vertex.op, record, (layer,), inputs)
        self.store.put_record(
            f"last-build:{opened.directory}:build",
            {
                "vertices": [
                    {"name": entry.name, "digest": entry.digest, "spans": []}
                    for entry in graph.walk()
                ]
            },
        )

    def layer(self, text: str) -> Any:
        from danlu.oci.tar import NormalizeOptions, write_layer

        normalise = NormalizeOptions(mtime=1)
        with self.store.staging() as staged:
            (staged / "file").write_text(text)
            summary = write_layer(staged, None, normalise=normalise)
            return self.store.commit_layer(staged, summary, created_by=text, normalise=normalise)


def forecasts(directory: Path, settings: Settings) -> dict[str, Any]:
    plan = plan_build(Project.open(None, directory=directory), settings=settings)
    return {vertex.name: vertex.forecast for vertex in plan.vertices if vertex.forecast is not None}


@pytest.fixture
def built_project(tmp_path: Path, settings: Settings) -> Path:
    opened = project(tmp_path)
    write_lock(opened, package("numpy"), package("einops"))
    RecordedBuild(settings, opened).build()
    return tmp_path


def test_why_is_never_built_before_the_first_build(tmp_path: Path, settings: Settings) -> None:
    write_lock(project(tmp_path), package("numpy"))
    result = forecasts(tmp_path, settings)
    assert result["numpy 1.0"].state == "build"
    assert result["numpy 1.0"].why == "never built on this machine (build.envd:5:5)"
    assert result["numpy 1.0"].download == 77
    assert result["base debian12 (2 packages)"].download == 2000


def test_why_finds_everything_cached_after_a_build(built_project: Path, settings: Settings) -> None:
    result = forecasts(built_project, settings)
    assert {value.state for value in result.values()} == {"cached"}
    assert all(value.size > 0 for value in result.values())


def test_why_names_the_line_that_is_new(built_project: Path, settings: Settings) -> None:
    opened = project(built_project, FILE.replace('"make data"', '"make other"'))
    result = forecasts(built_project, settings)
    building = {name: forecast for name, forecast in result.items() if forecast.state != "cached"}
    assert list(building) == ["run make other"]
    assert building["run make other"].why == "new since the last build (build.envd:6:5)"
    assert opened.file == "build.envd"


@pytest.mark.parametrize(
    ("call", "label"),
    [
        ('install.python_packages(requirements="some.txt")', "Python requirements of some.txt"),
        (
            'install.python_packages(["einops"], requirements="some.txt")',
            "1 Python requirement and those of some.txt",
        ),
        ('install.conda_packages(env_file="env.yaml")', "1 conda package and those of env.yaml"),
        ('install.conda_packages(["numpy"])', "1 conda package"),
    ],
)
def test_a_file_of_requirements_does_not_count_as_one(
    tmp_path: Path, settings: Settings, call: str, label: str
) -> None:
    (tmp_path / "some.txt").write_text("numpy\nrich\ntyper\n")
    (tmp_path / "env.yaml").write_text("dependencies: [numpy, rich]\n")
    text = f'def build():\n    base(os="debian12")\n    {call}\n'
    planned = plan_build(project(tmp_path, text), settings=settings)
    assert label in [vertex.name for vertex in planned.vertices]


def test_why_shows_the_previous_version_of_a_package(
    built_project: Path, settings: Settings
) -> None:
    write_lock(project(built_project), package("numpy", "2.0"), package("einops"))
    result = forecasts(built_project, settings)
    assert result["numpy 2.0"].why == "was 1.0 (build.envd:5:5)"
    assert result["einops 1.0"].state == "cached"
    assert result["run make data"].state == "maybe"
    assert result["run make data"].why == "depends on numpy 2.0"


def test_why_reports_steps_that_depend_on_unresolved_inputs(
    built_project: Path, settings: Settings
) -> None:
    project(built_project, FILE.replace('"einops"', '"einops", "rich"'))
    result = forecasts(built_project, settings)
    assert result["run make data"].state == "maybe"
    assert result["run make data"].why == "depends on 3 Python requirements"
    assert result["3 Python requirements"].why == (
        "rich is not locked yet (build.envd:5:5); "
        "numpy 1.0, einops 1.0 keep their versions if possible"
    )
    project(built_project, FILE.replace('"einops"', '"einops>=2"'))
    assert forecasts(built_project, settings)["2 Python requirements"].why == (
        "einops>=2 is not locked yet (build.envd:5:5); numpy 1.0 keeps its version if possible"
    )
    project(built_project, FILE.replace('["git"]', '["git", "curl"]'))
    result = forecasts(built_project, settings)
    assert result["base debian12 (2 packages)"].state == "cached"
    assert result["run make data"].state == "maybe"


def test_why_reports_removed_layers(built_project: Path, settings: Settings) -> None:
    from danlu.store import Store

    with Store.open(settings.paths.store) as store:
        store.collect(0)
        vertices = [
            {"name": vertex.name, "digest": vertex.digest, "spans": []}
            for vertex in plan_build(
                Project.open(None, directory=built_project), settings=settings
            ).vertices
        ]
        store.put_record(f"last-build:{built_project}:build", {"vertices": vertices})
    result = forecasts(built_project, settings)
    assert "removed from the store" in result["numpy 1.0"].why


def test_plan_is_plain_data(tmp_path: Path, settings: Settings) -> None:
    plan = plan_build(project(tmp_path), settings=settings)
    assert msgspec.structs.asdict(plan)["function"] == "build"


def test_unlocked_include_suggests_danlu_lock(tmp_path: Path, settings: Settings) -> None:
    url = "https://me:s3cr3t@git.example.invalid/library"
    text = f'lib = include("{url}")\n\n{FILE}'
    with pytest.raises(LockError, match="not locked") as caught:
        plan_build(project(tmp_path, text), settings=settings)
    assert "danlu lock" in caught.value.hint
    assert str(caught.value.span) == "build.envd:1:15"
    assert "s3cr3t" not in caught.value.message


def test_plan_shows_no_password(tmp_path: Path, settings: Settings) -> None:
    url = "https://me:s3cr3t@h"
    lines = (
        f'install.python_packages(["a @ {url}/a-1.tar.gz", "-i {url}"])',
        f'io.http("{url}/data")',
        f'run(["curl {url}"])',
        f'install.conda_packages(["x"], channel=["{url}"])',
    )
    text = FILE + "".join(f"    {line}\n" for line in lines)
    plan = plan_build(project(tmp_path, text), settings=settings)
    assert b"s3cr3t" not in msgspec.json.encode(plan)
    assert b"curl https://***@h" in msgspec.json.encode(plan)


def test_plan_shows_the_functions_that_are_copied_from(tmp_path: Path, settings: Settings) -> None:
    text = (
        FILE
        + """
def unused():
    base(os="debian12")

def production():
    base(os="debian12")
    io.copy("/data", "/data", source=build)
"""
    )
    opened = replace_function(project(tmp_path, text), "production")
    plan = plan_build(opened, settings=settings)
    (source,) = plan.sources
    assert (source.name, source.copied_by) == ("build", ("production",))
    assert source.lines == ("build.envd:13:5",)
    names = {vertex.name: vertex.source for vertex in plan.vertices}
    assert names["build: run make data"] == "build"
    assert names["copy /data of build to /data"] == ""
    assert names["base debian12"] == "", "both have it"


def test_plan_is_stale_if_what_is_copied_from_is(tmp_path: Path, settings: Settings) -> None:
    text = (
        FILE
        + """
def production():
    base(os="debian12")
    io.copy("/data", "/data", source=build)
"""
    )
    opened = replace_function(project(tmp_path, text), "production")
    environment = opened.environment()
    base = LockedBase(
        digest_base_inputs(environment, host_platform()), 1, "debian12", "bookworm", "glibc 2.36"
    )
    system = LockedSystem(digest_system_inputs(environment, base, None))
    packages = digest_package_inputs(environment, base, None, opened.inputs(environment))
    own = FunctionLock(str(host_platform()), base, system=system, packages_inputs=packages)
    opened.lock_file.write(Lock({"production": own}))
    plan = plan_build(opened, settings=settings)
    assert (plan.lock, plan.stale) == ("stale", "build: everything")


def replace_function(opened: Project, function: str) -> Project:
    return dataclasses.replace(opened, function=function)
