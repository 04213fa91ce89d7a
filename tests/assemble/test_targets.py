"""The graph of a function with those that it copies from."""

from __future__ import annotations

from danlu.assemble.assemble import Target, TargetGraph, assemble, assemble_targets
from danlu.environment.lock import FunctionLock, LockedBase, LockedSystem
from danlu.environment.types import ProjectDigests
from danlu.graph.ops import AptInstall, Bootstrap, CopyImage, DebPackage, Exec, Platform
from tests.lang.support import envd

FILE = """\
def tools():
    base(os="debian12")
    install.apt_packages(["make"])
    run(["make"])

def build():
    base(os="debian12")
    io.copy("/a", "/a", source=tools)
    io.copy("/b", "/b", source=tools)
"""


def deb(name: str) -> DebPackage:
    return DebPackage(name, "1", "amd64", "0" * 64, 1, "bookworm", f"pool/{name}.deb")


BASE = LockedBase("", 1, "debian12", "bookworm", packages=(deb("dash"),))
LOCKS = {
    "tools": FunctionLock(
        "linux/amd64", BASE, system=LockedSystem("", packages=(deb("make"),), requested=("make",))
    ),
    "build": FunctionLock("linux/amd64", BASE),
}


def assemble_file() -> TargetGraph:
    environment = envd(FILE)
    sources = [
        Target(name, source, LOCKS[name], ProjectDigests())
        for name, source in environment.sources.items()
    ]
    main = Target("build", environment, LOCKS["build"], ProjectDigests())
    return assemble_targets([*sources, main], Platform())


def test_a_source_has_the_graph_that_it_has_by_itself() -> None:
    """So it is built once, however often it is copied from, and not again for its own image."""
    alone = assemble(envd(FILE, "tools"), LOCKS["tools"]).root
    copies = [v for v in assemble_file().graph.walk() if isinstance(v.op, CopyImage)]
    assert [copy.inputs[0].digest for copy in copies] == [alone.digest] * 2


def test_only_vertices_of_sources_alone_are_named_after_them() -> None:
    assembled = assemble_file()
    names = {vertex.op.op_name(): vertex.name for vertex in assembled.graph.walk()}
    assert names["Bootstrap"] == "base debian12 (1 packages)"
    assert names["AptInstall"] == "tools: apt make"
    assert names["Exec"] == "tools: run make"


def test_every_vertex_belongs_to_one_function() -> None:
    assembled = assemble_file()
    owners = {digest: name for name, digests in assembled.vertices.items() for digest in digests}
    for vertex in assembled.graph.walk():
        if isinstance(vertex.op, AptInstall | Exec):
            assert owners[vertex.digest] == "tools"
        if isinstance(vertex.op, Bootstrap | CopyImage):
            assert owners[vertex.digest] == "build"
    assert sum(map(len, assembled.vertices.values())) == len(owners)
