"""Graphs of environments."""

import pytest
from msgspec.structs import replace

from danlu.assemble import assemble
from danlu.assemble.python import GROUP_ABOVE
from danlu.environment.inputs import Inputs
from danlu.environment.lock import (
    FunctionLock,
    LockedBase,
    LockedHttp,
    LockedImage,
    LockedPackage,
    LockedPython,
    LockedSystem,
)
from danlu.environment.types import (
    Base,
    Copy,
    Environ,
    Environment,
    GitConfig,
    Http,
    Other,
    Owner,
    PipIndex,
    Python,
    PythonPackages,
    Run,
    Secret,
)
from danlu.errors import Span
from danlu.graph import (
    AptInstall,
    Bootstrap,
    BuildWheel,
    CopyContext,
    CopyImage,
    Deb,
    Exec,
    Files,
    Graph,
    HttpFile,
    ImageSource,
    Merge,
    Squash,
    Unbuilt,
    Unresolved,
    Wheel,
)

HASH = "0123456789abcdef" * 4


def deb(name: str) -> Deb:
    return Deb(name, "1", "amd64", HASH, 1, "bookworm", f"pool/{name}.deb")


def wheel(name: str, size: int = 10) -> LockedPackage:
    return LockedPackage(name, "1.0", "index", f"{name}-1.0-py3-none-any.whl", HASH, size)


ENVIRONMENT = Environment(
    "build",
    "build.envd",
    Base(os="debian12"),
    python=Python("3.11"),
    python_packages=(PythonPackages(("b", "a>1"), span=Span("build.envd", 4)),),
)
LOCK = FunctionLock(
    platform="linux/amd64",
    base=LockedBase("i", 1700, "debian", "bookworm", "glibc 2.36", packages=(deb("dash"),)),
    python=LockedPython("i", "3.11.2", "/usr/bin/python3.11", "apt"),
    system=LockedSystem("i", (deb("python3.11"),), ("python3.11",)),
    packages=(wheel("b"), wheel("a")),
)


def ops(graph: Graph, kind: type) -> list[object]:
    return [vertex.op for vertex in graph.walk() if type(vertex.op) is kind]


def test_base_system_and_python_in_their_order() -> None:
    graph = assemble(ENVIRONMENT, LOCK)
    top = graph.root
    assert isinstance(top.op, Merge)
    kinds = [type(vertex.op).__name__ for vertex in top.inputs]
    assert kinds == ["AptInstall", "Files", "Wheel", "Wheel"]
    assert isinstance(top.inputs[0].inputs[0].op, Bootstrap)
    assert graph.epoch == 1700


def test_wheels_are_sorted_by_name_whatever_the_lock_says() -> None:
    graph = assemble(ENVIRONMENT, LOCK)
    names = [vertex.op.name for vertex in graph.walk() if isinstance(vertex.op, Wheel)]
    assert names == ["a", "b"]
    turned = replace(LOCK, packages=tuple(reversed(LOCK.packages)))
    assert assemble(ENVIRONMENT, turned).digest == graph.digest


def test_wheels_do_not_depend_on_what_lies_below() -> None:
    other = replace(LOCK, system=LockedSystem("i", (deb("git"),), ("git",)))
    wheels = [
        {v.digest for v in assemble(ENVIRONMENT, lock).walk() if isinstance(v.op, Wheel)}
        for lock in (LOCK, other)
    ]
    assert wheels[0] == wheels[1]


def test_a_vertex_carries_the_line_that_asked_for_it() -> None:
    graph = assemble(ENVIRONMENT, LOCK)
    spans = {v.op.name: v.spans for v in graph.walk() if isinstance(v.op, Wheel)}
    assert spans["a"] == (Span("build.envd", 4),)


def test_lines_do_not_change_the_digest() -> None:
    moved = replace(
        ENVIRONMENT,
        python_packages=(PythonPackages(("b", "a>1"), span=Span("other.envd", 99)),),
    )
    assert assemble(moved, LOCK).digest == assemble(ENVIRONMENT, LOCK).digest


def test_without_a_lock_sources_are_unresolved() -> None:
    graph = assemble(ENVIRONMENT, None)
    kinds = [op.kind for op in ops(graph, Unresolved) if isinstance(op, Unresolved)]
    assert kinds == ["base", "system packages", "Python packages"]


def test_steps_lie_over_everything_declared_in_their_order() -> None:
    environment = replace(
        ENVIRONMENT,
        steps=(
            Http("https://example.org/data.csv"),
            Copy("src", "/app"),
            Run(("make",), secrets=(Secret("token", "/run/secrets/token"),), ssh=True),
            Run(("true",), mount_host=True),
        ),
        owner=Owner(1000, 1001),
    )
    lock = replace(LOCK, http=(LockedHttp("https://example.org/data.csv", HASH, 3),))
    graph = assemble(environment, lock, Inputs({"src": "sha256:1"}, context="sha256:2"))
    last = graph.root
    assert isinstance(last.op, Exec)
    assert last.op.context
    assert last.op.context_digest == "sha256:2"
    make = last.inputs[0]
    assert isinstance(make.op, Exec)
    assert make.op.secrets[0].id == "token"
    copied = make.inputs[0].inputs[1].op
    assert copied == CopyContext("src", "/app", "sha256:1", 1000, 1001, 1700)
    fetched = make.inputs[0].inputs[0].inputs[1].op
    assert isinstance(fetched, HttpFile)
    assert fetched.target == "/home/envd/extra_source/data.csv"
    assert graph.config.user == "1000:1001"


def test_an_image_base_and_copies_from_images() -> None:
    digest = f"sha256:{HASH}"
    environment = Environment(
        "build",
        "build.envd",
        Base(image="debian:12"),
        steps=(Copy("/bin/tool", "/usr/bin/", image="tools:1"),),
    )
    lock = FunctionLock(
        "linux/amd64",
        LockedBase("i", 5, image=LockedImage("debian:12", digest)),
        images=(LockedImage("tools:1", digest),),
    )
    graph = assemble(environment, lock)
    assert len(ops(graph, ImageSource)) == 2
    assert ops(graph, CopyImage) == [CopyImage("/bin/tool", "/usr/bin/", 0, 0, 5)]


def test_a_source_distribution_is_built_where_the_system_packages_are() -> None:
    sdist = LockedPackage("old", "1.0", "sdist", "old-1.0.tar.gz", HASH)
    graph = assemble(ENVIRONMENT, replace(LOCK, packages=(sdist,)))
    built = next(v for v in graph.walk() if isinstance(v.op, BuildWheel))
    assert isinstance(built.inputs[0].op, AptInstall)
    assert any(isinstance(v.op, Wheel) and built in v.inputs for v in graph.walk())


def test_a_credential_of_an_index_never_enters_the_image() -> None:
    index = PipIndex("https://user:secret@example.org/simple", "https://t:k@example.com/", True)
    graph = assemble(replace(ENVIRONMENT, pip_index=index), LOCK)
    written = [op for op in ops(graph, Files) if "pip.conf" in str(op)]
    assert len(written) == 1
    assert "example.org" in str(written)
    assert "secret" not in str(written)
    assert "t:k" not in str(written)


def test_git_configuration_is_quoted() -> None:
    config = GitConfig('A "B" \\', "a@example.org", "vim")
    graph = assemble(replace(ENVIRONMENT, git_config=config), LOCK)
    text = next(e.content for op in ops(graph, Files) for e in op.entries if "git" in e.path)  # type: ignore[attr-defined]
    assert '\tname = "A \\"B\\" \\\\"\n' in text


def test_environment_variables_and_path() -> None:
    environ = (Environ((("A", "1"),), ("/a",)), Environ((("A", "2"),), ("/b",)))
    config = assemble(replace(ENVIRONMENT, environ=environ), LOCK).config
    assert dict(config.environment)["A"] == "2"
    assert config.path == ("/b", "/a", "/opt/venv/bin")


def test_what_is_only_planned_is_shown_with_its_line() -> None:
    other = (
        Other("install.cuda", (("version", '"12"'),), span=Span("build.envd", 7)),
        Other("runtime.expose", at_start=True),
    )
    graph = assemble(replace(ENVIRONMENT, other=other), LOCK)
    unbuilt = [v for v in graph.walk() if isinstance(v.op, Unbuilt)]
    assert [v.op.function for v in unbuilt if isinstance(v.op, Unbuilt)] == ["install.cuda"]
    assert unbuilt[0].spans == (Span("build.envd", 7),)


def many(count: int) -> FunctionLock:
    return replace(LOCK, packages=tuple(wheel(f"package-{n}") for n in range(count)))


def test_up_to_a_hundred_wheels_have_layers_of_their_own() -> None:
    graph = assemble(ENVIRONMENT, many(GROUP_ABOVE))
    assert not ops(graph, Squash)


@pytest.mark.parametrize("count", [101, 300, 700])
def test_beyond_that_small_wheels_are_grouped(count: int) -> None:
    big = wheel("huge", 1 << 30)
    lock = replace(many(count), packages=(*many(count).packages, big))
    graph = assemble(ENVIRONMENT, lock)
    groups = [v for v in graph.walk() if isinstance(v.op, Squash)]
    assert 2 < len(groups) < GROUP_ABOVE
    assert all(len(group.inputs) > 1 for group in groups)
    assert big.name not in {v.op.name for g in groups for v in g.inputs if isinstance(v.op, Wheel)}


def test_one_package_more_changes_one_group() -> None:
    before = assemble(ENVIRONMENT, many(300))
    after = assemble(
        ENVIRONMENT, replace(many(300), packages=(*many(300).packages, wheel("new-one")))
    )
    groups = [
        {v.digest for v in graph.walk() if isinstance(v.op, Squash)} for graph in (before, after)
    ]
    assert len(groups[1] - groups[0]) <= 2
    assert len(groups[0] & groups[1]) >= len(groups[0]) - 1
