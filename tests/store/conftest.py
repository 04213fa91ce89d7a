"""Fixtures: a store in a scratch directory, a manual clock, real layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from danlu.oci.tar import NormalizeOptions, write_layer
from danlu.store import Layer, Store

MakeLayer = Callable[..., Layer]


class FakeClock:
    """Seconds since 1970, moved by the test."""

    def __init__(self) -> None:
        self.now = 1_700_000_000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(tmp_path: Path, clock: FakeClock) -> Iterator[Store]:
    with Store.open(tmp_path / "store", clock=clock) as store:
        yield store


@pytest.fixture
def make_layer(clock: FakeClock) -> MakeLayer:
    """``make_layer(store, text)``: a layer of one file; the clock advances an hour for each."""

    def make(store: Store, text: str) -> Layer:
        normalise = NormalizeOptions(mtime=1)
        clock.now += 3600
        with store.staging() as tree:
            (tree / "file").write_text(text)
            summary = write_layer(tree, None, normalise=normalise)
            return store.commit_layer(tree, summary, created_by=text, normalise=normalise)

    return make
