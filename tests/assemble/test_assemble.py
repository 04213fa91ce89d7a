"""Graphs of environments."""

import subprocess

import pytest
from msgspec.structs import replace

from danlu.assemble.assemble import assemble
from danlu.assemble.python import GROUP_ABOVE
from danlu.environment.lock import (
    FunctionLock,
    LockedBase,
    LockedImage,
    LockedPackage,
    LockedPython,
    LockedSystem,
)
from danlu.environment.types import (
    AptSource,
    BaseSystem,
    Declaration,
    Environment,
    ImageOwner,
    PipIndex,
    ProjectDigests,
    PythonInterpreter,
    PythonPackages,
)
from danlu.errors import Span
from danlu.graph.ops import (
    AptInstall,
    Bootstrap,
    BuildEditable,
    BuildWheel,
    CopyContext,
    CopyImage,
    DebPackage,
    Exec,
    Files,
    HttpFile,
    ImageSource,
    LoaderCache,
    Merge,
    OwnDirectories,
    Squash,
    Unresolved,
    Wheel,
)
from danlu.graph.types import Graph, Vertex
from danlu.lang.functions.base import GitConfig, LoginShell
from danlu.lang.functions.cuda import CudaToolkit
from danlu.lang.functions.runtime import EnvironmentVariables
from danlu.lang.functions.steps import CopyStep, HttpStep, LockedHttp, RunStep, StepSecret
from danlu.lang.package_layers import group_packages

HASH = "0123456789abcdef" * 4


def deb(name: str) -> DebPackage:
    return DebPackage(name, "1", "amd64", HASH, 1, "bookworm", f"pool/{name}.deb")


def wheel(name: str, size: int = 10) -> LockedPackage:
    return LockedPackage(name, "1.0", "index", f"{name}-1.0-py3-none-any.whl", HASH, size)


ENVIRONMENT = Environment(
    "build",
    "build.envd",
    BaseSystem(os="debian12"),
    declarations=(
        PythonInterpreter("3.11"),
        PythonPackages(("b", "a>1"), span=Span("build.envd", 4)),
    ),
)
LOCK = FunctionLock(
    platform="linux/amd64",
    base=LockedBase("i", 1700, "debian", "bookworm", "glibc 2.36", packages=(deb("dash"),)),
    python=LockedPython("i", "3.11.2", "/usr/bin/python3.11", "apt"),
    system=LockedSystem("i", (deb("python3.11"),), ("python3.11",)),
    packages=(wheel("b"), wheel("a")),
)


def with_declarations(*declarations: Declaration) -> Environment:
    return replace(ENVIRONMENT, declarations=(*ENVIRONMENT.declarations, *declarations))


def ops(graph: Graph, kind: type) -> list[object]:
    return [vertex.op for vertex in graph.walk() if type(vertex.op) is kind]


def test_base_system_and_python_in_their_order() -> None:
    graph = assemble(ENVIRONMENT, LOCK)
    top = graph.root
    assert isinstance(top.op, Merge)
    kinds = [type(vertex.op).__name__ for vertex in top.inputs]
    assert kinds == ["AptInstall", "Files", "Wheel", "Wheel", "ShellStartup"]
    assert isinstance(top.inputs[0].inputs[0].op, Bootstrap)
    assert graph.epoch == 1700


def test_wheels_are_sorted_by_name_in_any_lock_order() -> None:
    graph = assemble(ENVIRONMENT, LOCK)
    names = [vertex.op.name for vertex in graph.walk() if isinstance(vertex.op, Wheel)]
    assert names == ["a", "b"]
    turned = replace(LOCK, packages=tuple(reversed(LOCK.packages)))
    assert assemble(ENVIRONMENT, turned).digest == graph.digest


def test_wheels_do_not_depend_on_lower_layers() -> None:
    other = replace(LOCK, system=LockedSystem("i", (deb("git"),), ("git",)))
    wheels = [
        {v.digest for v in assemble(ENVIRONMENT, lock).walk() if isinstance(v.op, Wheel)}
        for lock in (LOCK, other)
    ]
    assert wheels[0] == wheels[1]


def test_a_vertex_has_the_line_of_its_declaration() -> None:
    graph = assemble(ENVIRONMENT, LOCK)
    spans = {v.op.name: v.spans for v in graph.walk() if isinstance(v.op, Wheel)}
    assert spans["a"] == (Span("build.envd", 4),)


def test_lines_do_not_change_the_digest() -> None:
    moved = replace(
        ENVIRONMENT,
        declarations=(
            PythonInterpreter("3.11", span=Span("other.envd", 98)),
            PythonPackages(("b", "a>1"), span=Span("other.envd", 99)),
        ),
    )
    assert assemble(moved, LOCK).digest == assemble(ENVIRONMENT, LOCK).digest


def test_order_of_declarations_does_not_change_the_digest() -> None:
    declarations = (AptSource("deb x"), PipIndex("https://example.org"), GitConfig("Ada"))
    graph = assemble(with_declarations(*declarations), LOCK)
    assert graph.digest == assemble(with_declarations(*reversed(declarations)), LOCK).digest
    paths = [entry.path for op in ops(graph, Files)[-1:] for entry in op.entries]  # type: ignore[attr-defined]
    assert paths == ["/etc/apt/sources.list", "/etc/pip.conf", "/etc/gitconfig"]


def test_shell_wins_over_a_declared_variable() -> None:
    variables = EnvironmentVariables((("SHELL", "/bin/sh"),))
    for declarations in ((LoginShell("zsh"), variables), (variables, LoginShell("zsh"))):
        config = assemble(with_declarations(*declarations), LOCK).config
        assert dict(config.environment)["SHELL"] == "/usr/bin/zsh"


def test_without_a_lock_sources_are_unresolved() -> None:
    graph = assemble(ENVIRONMENT, None)
    kinds = [op.kind for op in ops(graph, Unresolved) if isinstance(op, Unresolved)]
    assert kinds == ["base", "system packages", "Python packages"]


def test_steps_follow_all_declarations_in_order() -> None:
    environment = replace(
        ENVIRONMENT,
        steps=(
            HttpStep("https://example.org/data.csv"),
            CopyStep("src", "/app"),
            RunStep(("make",), secrets=(StepSecret("token", "/run/secrets/token"),), ssh=True),
            RunStep(("true",), mount_host=True),
        ),
        declarations=(*ENVIRONMENT.declarations, ImageOwner(1000, 1001)),
    )
    file = LockedHttp("https://example.org/data.csv", HASH, 3)
    lock = replace(LOCK, sections={"http": (file,)})
    graph = assemble(environment, lock, ProjectDigests({"src": "sha256:1"}, context="sha256:2"))
    assert graph.root.op == OwnDirectories(("/opt/venv",), 1000, 1001, 1700)
    last = graph.root.inputs[0]
    assert isinstance(last.op, Exec)
    assert last.op.context
    assert (last.op.home, last.op.home_uid, last.op.home_gid) == ("/home/envd", 1000, 1001)
    assert last.op.context_digest == "sha256:2"
    make = last.inputs[0]
    assert isinstance(make.op, Exec)
    assert make.op.secrets[0].id == "token"
    assert (make.op.context, make.op.context_digest) == (False, "")
    assert (last.op.working_directory, make.op.working_directory) == ("/workspace", "/home/envd")
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
        BaseSystem(image="debian:12"),
        steps=(CopyStep("/bin/tool", "/usr/bin/", image="tools:1"),),
    )
    lock = FunctionLock(
        "linux/amd64",
        LockedBase("i", 5, image=LockedImage("debian:12", digest)),
        sections={"images": (LockedImage("tools:1", digest),)},
    )
    graph = assemble(environment, lock)
    assert len(ops(graph, ImageSource)) == 2
    assert ops(graph, CopyImage) == [CopyImage("/bin/tool", "/usr/bin/", 0, 0, 5)]


def test_a_source_distribution_is_built_on_the_system_packages() -> None:
    sdist = LockedPackage("old", "1.0", "sdist", "old-1.0.tar.gz", HASH)
    graph = assemble(ENVIRONMENT, replace(LOCK, packages=(sdist,)))
    built = next(v for v in graph.walk() if isinstance(v.op, BuildWheel))
    assert isinstance(built.inputs[0].op, AptInstall)
    assert any(isinstance(v.op, Wheel) and built in v.inputs for v in graph.walk())


def test_an_editable_package_is_copied_only_into_an_image_for_elsewhere() -> None:
    package = LockedPackage("mine", "1.0", "local", sha256=HASH, location="lib", editable=True)
    lock = replace(LOCK, packages=(package,))
    graph = assemble(ENVIRONMENT, lock)
    (built,) = ops(graph, BuildEditable)
    assert isinstance(built, BuildEditable)
    assert (built.location, built.project, built.sha256) == ("lib", "/workspace", HASH)
    content = "c" * 64
    graph = assemble(ENVIRONMENT, lock, ProjectDigests(copies={"lib": f"sha256:{content}"}))
    (copied,) = ops(graph, BuildWheel)
    assert isinstance(copied, BuildWheel)
    assert (copied.location, copied.sha256) == ("lib", content)
    assert not ops(graph, BuildEditable)


def test_the_loader_finds_the_libraries_of_cuda() -> None:
    packages = (wheel("nvidia-cuda-runtime"), wheel("nvidia-cudnn-cu13"), wheel("numpy"))
    graph = assemble(
        with_declarations(CudaToolkit("13.0", cudnn="*")), replace(LOCK, packages=packages)
    )
    (cache,) = (vertex for vertex in graph.walk() if isinstance(vertex.op, LoaderCache))
    assert isinstance(cache.op, LoaderCache)
    site = "/opt/venv/lib/python3.11/site-packages/nvidia"
    config, *links = cache.op.entries
    assert config.content == f"{site}/cu13/lib\n{site}/cudnn/lib\n"
    assert {entry.path: entry.target for entry in links} == {
        "/usr/local/cuda": f"{site}/cu13",
        f"{site}/cu13/lib64": "lib",
    }
    below = [vertex.op for vertex in cache.inputs[0].inputs if isinstance(vertex.op, Wheel)]
    assert len(below) == 2, "the loader's cache depends on the wheels of NVIDIA alone"


@pytest.mark.parametrize("count", [40, 60])
def test_many_packages_of_a_language_share_layers(count: int) -> None:
    vertices = {f"p{n:02}": Vertex(Merge(), (), f"p{n:02}", "r") for n in range(count)}
    grouped = group_packages(vertices)
    if count == 40:
        assert grouped == tuple(vertices.values())
        return
    assert all(isinstance(vertex.op, Squash) for vertex in grouped)
    assert [vertex for group in grouped for vertex in group.inputs] == list(vertices.values())
    assert 1 < len(grouped) < count / 2
    # One more package changes one group.
    more = group_packages(dict(sorted({**vertices, "p30a": Vertex(Merge(), (), "x")}.items())))
    assert len({group.inputs for group in grouped} - {group.inputs for group in more}) == 1


def test_a_credential_of_an_index_never_enters_the_image() -> None:
    index = PipIndex("https://user:secret@example.org/simple", "https://t:k@example.com/", True)
    graph = assemble(with_declarations(index), LOCK)
    content = [op for op in ops(graph, Files) if "pip.conf" in str(op)]
    assert len(content) == 1
    assert "example.org" in str(content)
    assert "secret" not in str(content)
    assert "t:k" not in str(content)


def test_git_configuration_is_quoted() -> None:
    config = GitConfig('A "B" \\', "a@example.org", "vim")
    graph = assemble(with_declarations(config), LOCK)
    text = next(e.content for op in ops(graph, Files) for e in op.entries if "git" in e.path)  # type: ignore[attr-defined]
    assert '\tname = "A \\"B\\" \\\\"\n' in text


def test_environment_variables_and_path() -> None:
    environ = (
        EnvironmentVariables((("A", "1"),), ("/a",)),
        EnvironmentVariables((("A", "2"),), ("/b",)),
    )
    config = assemble(with_declarations(*environ), LOCK).config
    assert dict(config.environment)["A"] == "2"
    assert config.path == ("/b", "/a", "/opt/venv/bin")


def lock_with_packages(count: int) -> FunctionLock:
    return replace(LOCK, packages=tuple(wheel(f"package-{n}") for n in range(count)))


def test_up_to_100_wheels_have_separate_layers() -> None:
    graph = assemble(ENVIRONMENT, lock_with_packages(GROUP_ABOVE))
    assert not ops(graph, Squash)


@pytest.mark.parametrize("count", [101, 300, 700])
def test_beyond_that_small_wheels_are_grouped(count: int) -> None:
    big = wheel("huge", 1 << 30)
    lock = replace(lock_with_packages(count), packages=(*lock_with_packages(count).packages, big))
    graph = assemble(ENVIRONMENT, lock)
    groups = [v for v in graph.walk() if isinstance(v.op, Squash)]
    assert 2 < len(groups) < GROUP_ABOVE
    assert all(len(group.inputs) > 1 for group in groups)
    assert big.name not in {v.op.name for g in groups for v in g.inputs if isinstance(v.op, Wheel)}


def test_adding_a_package_changes_one_group() -> None:
    before = assemble(ENVIRONMENT, lock_with_packages(300))
    after = assemble(
        ENVIRONMENT,
        replace(
            lock_with_packages(300), packages=(*lock_with_packages(300).packages, wheel("new-one"))
        ),
    )
    groups = [
        {v.digest for v in graph.walk() if isinstance(v.op, Squash)} for graph in (before, after)
    ]
    assert len(groups[1] - groups[0]) <= 2
    assert len(groups[0] & groups[1]) >= len(groups[0]) - 1


def assemble_run(script: str) -> Vertex:
    return assemble(replace(ENVIRONMENT, steps=(RunStep((script,)),)), LOCK, ProjectDigests()).root


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo a\nfalse\necho b", "run(): line 2 failed with exit code 1: false"),
        ("echo a\n\nfalse | cat", "run(): line 3 failed with exit code 1: cat"),
        ("echo a\n(cd /; false)", "run(): line 2 failed with exit code 1: ( cd /; false )"),
        ("f() { ls /none; }\nf", "run(): failed with exit code 2: ls /none"),
        ("true\nexit 3", "run(): failed with exit code 3: exit 3"),
        ("trap 'echo bye >&2' EXIT\nfalse", "bye"),
        ("set +e\nfalse\nset -e\ntrue", ""),
        ("x=$(false || true)\n! true\nfalse || true\n[ $# = 0 ]\n[ $LINENO = 5 ]", ""),
    ],
)
def test_a_script_of_several_lines_says_which_command_failed(script: str, said: str) -> None:
    op = assemble_run(script).op
    assert isinstance(op, Exec)
    assert op.args[-1] == script  # what the history of the image shows
    done = subprocess.run(op.args, capture_output=True, text=True, check=False)
    assert bool(done.returncode) == bool(said)
    assert (done.stderr.splitlines() or [""])[-1] == said


def test_a_script_of_one_line_runs_as_it_is() -> None:
    op = assemble_run("make all").op
    assert isinstance(op, Exec)
    assert op.args == ("/bin/bash", "-euo", "pipefail", "-c", "make all")
