from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.builder.embedded.build import list_unsolved, require_subordinate_ids
from danlu.errors import MachineError
from danlu.graph.image_config import ImageConfig
from danlu.graph.ops import AptInstall, Bootstrap, Exec, FileEntry, Files, Op, Platform
from danlu.graph.types import Graph, Vertex
from danlu.sandbox import userns
from danlu.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as store:
        yield store


def graph_of(op: Op) -> Graph:
    return Graph(Vertex(op), ImageConfig(), Platform(), epoch=0)


def step(uid: int) -> Exec:
    return Exec(("true",), (), "/", 0, uid=uid)


NEEDY = [
    (Bootstrap("debian", "bookworm", (), epoch=0), "a base of debian packages"),
    (AptInstall((), ("git",), epoch=0, codename="bookworm"), "installing system packages"),
    (step(1000), "a step that runs as a user other than root"),
    (
        Files((FileEntry("/a", content="x", gid=5),), epoch=1),
        "a file that belongs to a user other than root",
    ),
]


@pytest.mark.parametrize(("op", "what"), NEEDY)
def test_ops_with_other_users_need_subordinate_ids(
    store: Store, monkeypatch: pytest.MonkeyPatch, op: Op, what: str
) -> None:
    monkeypatch.setattr(userns, "has_single_id", lambda: True)
    with pytest.raises(MachineError, match=f"{what}.* needs subordinate user ids"):
        require_subordinate_ids(list_unsolved(graph_of(op), store))


@pytest.mark.parametrize("op", [op for op, _ in NEEDY])
def test_account_with_subordinate_ids_can_build_anything(
    store: Store, monkeypatch: pytest.MonkeyPatch, op: Op
) -> None:
    monkeypatch.setattr(userns, "has_single_id", lambda: False)
    require_subordinate_ids(list_unsolved(graph_of(op), store))


@pytest.mark.parametrize("op", [step(0), Files((FileEntry("/a", content="x"),), epoch=1)])
def test_ops_of_root_need_one_id(store: Store, monkeypatch: pytest.MonkeyPatch, op: Op) -> None:
    monkeypatch.setattr(userns, "has_single_id", lambda: True)
    require_subordinate_ids(list_unsolved(graph_of(op), store))
