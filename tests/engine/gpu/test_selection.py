"""The value of ``--gpus``, and the GPUs that it chooses."""

from __future__ import annotations

import pytest

from danlu.engine.gpu.selection import (
    GpuChoice,
    GpuSelection,
    choose_gpus,
    limit_to_visible,
    parse_gpus,
)
from danlu.errors import MachineError, UsageError

GPUS = [GpuChoice((str(index), f"GPU-{letter}b1c2d3-0000")) for index, letter in enumerate("abca")]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", GpuSelection()),
        ("none", GpuSelection()),
        ("0", GpuSelection()),
        ("all", GpuSelection(every=True)),
        ("2", GpuSelection(count=2)),
        ("0,1", GpuSelection(names=("0", "1"))),
        ("1,1,", GpuSelection(names=("1",))),
        ("device=0", GpuSelection(names=("0",))),
        ('"device=0,2"', GpuSelection(names=("0", "2"))),
        ("GPU-1a2b, 0:1", GpuSelection(names=("GPU-1a2b", "0:1"))),
        ("MIG-GPU-1a2b/3/0", GpuSelection(names=("MIG-GPU-1a2b/3/0",))),
    ],
)
def test_selection_is_parsed(text: str, expected: GpuSelection) -> None:
    assert parse_gpus(text) == expected


@pytest.mark.parametrize(
    "text", ["x", "-1", "1.5", "0,,1", ",", "all,0", "99999", "device=", "GPU-", "../0", "٣", "0;1"]
)
def test_invalid_selection_is_rejected(text: str) -> None:
    with pytest.raises(UsageError, match="invalid GPU") as caught:
        parse_gpus(text)
    assert "device=0" in caught.value.hint


@pytest.mark.parametrize(
    ("text", "visible", "expected"),
    [
        ("all", None, "0123"),
        ("2", None, "01"),
        ("3,1", None, "31"),
        ("GPU-b", None, "1"),
        ("all", "2,0", "20"),
        ("1", "GPU-cb1c2d3-0000", "2"),
        # As in CUDA: what follows an unknown GPU is invisible.
        ("all", "1,9,0", "1"),
        # Explicit names are the user's own decision.
        ("device=3", "0", "3"),
    ],
)
def test_gpus_are_chosen(text: str, visible: str | None, expected: str) -> None:
    environ = {} if visible is None else {"CUDA_VISIBLE_DEVICES": visible}
    chosen = choose_gpus(parse_gpus(text), GPUS, environ)
    assert "".join(gpu.names[0] for gpu in chosen) == expected


@pytest.mark.parametrize(
    ("text", "environ", "message"),
    [
        ("5", {}, "--gpus 5: this machine has 4 GPUs"),
        ("2", {"CUDA_VISIBLE_DEVICES": "1"}, "--gpus 2: CUDA_VISIBLE_DEVICES=1 has 1 GPU"),
        ("all", {"CUDA_VISIBLE_DEVICES": ""}, "--gpus all: CUDA_VISIBLE_DEVICES= has 0 GPUs"),
        ("0,4", {}, "no GPU 4 on this machine"),
        # The beginning of two UUIDs.
        ("GPU-a", {}, "no GPU GPU-a on this machine"),
    ],
)
def test_missing_gpus_are_an_error(text: str, environ: dict[str, str], message: str) -> None:
    with pytest.raises(MachineError) as caught:
        choose_gpus(parse_gpus(text), GPUS, environ)
    assert caught.value.message == message
    assert caught.value.hint


def test_without_the_variable_all_gpus_are_visible() -> None:
    assert limit_to_visible(GPUS, {}) == tuple(GPUS)
