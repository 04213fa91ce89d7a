"""Digests of vertices and graphs."""

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from danlu.errors import Span
from danlu.graph.image_config import ImageConfig
from danlu.graph.ops import Exec, FileEntry, Files, Merge, Platform, SecretMount
from danlu.graph.types import Graph, Vertex

LEAF = Vertex(Files((FileEntry("/a", content="x"),), epoch=1), name="leaf")


def step(**changes: object) -> Exec:
    op = Exec(("sh", "-c", "true"), (("A", "1"),), "/", epoch=1)
    return replace(op, **changes)


def test_name_branch_and_lines_do_not_change_a_digest() -> None:
    named = Vertex(LEAF.op, name="other", branch="steps", spans=(Span("build.envd", 3),))
    assert named.digest == LEAF.digest


def test_every_field_of_a_step_changes_its_digest() -> None:
    variants = [
        step(),
        step(args=("sh", "-c", "false")),
        step(environment=(("A", "2"),)),
        step(working_directory="/tmp"),
        step(epoch=2),
        step(uid=1),
        step(gid=1),
        step(path=("/opt/bin",)),
        step(secrets=(SecretMount("token", "/run/secrets/token"),)),
        step(ssh=True),
        step(context=True),
        step(context_digest="sha256:1"),
    ]
    assert len({Vertex(op, (LEAF,)).digest for op in variants}) == len(variants)


def test_inputs_and_their_order_change_a_digest() -> None:
    other = Vertex(Files((FileEntry("/b"),), epoch=1))
    digests = {Vertex(Merge(), inputs).digest for inputs in ((LEAF,), (LEAF, other), (other, LEAF))}
    assert len(digests) == 3


def test_walk_gives_each_vertex_once_and_inputs_first() -> None:
    twice = Vertex(Merge(), (LEAF, Vertex(LEAF.op, name="again")))
    top = Vertex(step(), (twice,))
    graph = Graph(top, ImageConfig(), Platform(), epoch=0)
    order = [vertex.digest for vertex in graph.walk()]
    assert order == [LEAF.digest, twice.digest, top.digest]


def test_a_deep_chain_is_walked_without_recursion() -> None:
    top = LEAF
    for number in range(3000):
        top = Vertex(step(epoch=number), (top,))
        assert top.digest
    assert len(list(Graph(top, ImageConfig(), Platform(), epoch=0).walk())) == 3001


@given(st.text(), st.text())
def test_different_content_has_different_digests(one: str, other: str) -> None:
    digests = {
        Vertex(Files((FileEntry("/a", content=text),), epoch=1)).digest for text in (one, other)
    }
    assert len(digests) == len({one, other})


def test_a_digest_is_the_same_on_every_machine() -> None:
    # A changed value here means that everybody's caches are lost: raise op_version on purpose.
    assert LEAF.digest == Vertex(Files((FileEntry("/a", content="x"),), epoch=1)).digest
    assert LEAF.digest.startswith("sha256:")
