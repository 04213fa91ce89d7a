"""What an image needs of a processor: in its configuration, and on this machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from danlu.builder.embedded.build import make_image_config
from danlu.errors import MachineError
from danlu.graph.image_config import ImageConfig, parse_image_config
from danlu.graph.ops import Merge, Platform
from danlu.graph.processor_level import LEVEL_LABEL, render_node_terms
from danlu.graph.types import Graph, Vertex
from danlu.sandbox import processor
from danlu.sandbox.processor import find_machine_level, read_image_level, require_processor

NO_CONFIG = ImageConfig()
#: Flags of processors, as their kernels print them.
CORE2 = "fpu cx16 lahf_lm pni ssse3 sse4_1"
NEHALEM = f"{CORE2} sse4_2 popcnt"
HASWELL = f"{NEHALEM} avx avx2 bmi1 bmi2 f16c fma abm movbe xsave"
SKYLAKE = f"{HASWELL} avx512f avx512dq avx512cd avx512bw avx512vl"


def use_processor(flags: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "cpuinfo"
    file.write_text(f"processor\t: 0\nflags\t\t: {flags}\nvmx flags\t: avx512f\n\n" * 2)
    monkeypatch.setattr(processor, "_CPUINFO", file)


def make_config(
    *levels: str, architecture: str = "amd64", inherited: ImageConfig = NO_CONFIG
) -> bytes:
    labels = tuple((LEVEL_LABEL, level) for level in levels)
    platform = Platform("linux", architecture)
    graph = Graph(Vertex(Merge()), ImageConfig(labels=labels), platform, epoch=0)
    return make_image_config(graph, [], inherited)


def parse_labels(config: bytes) -> dict[str, Any]:
    labels: dict[str, Any] = json.loads(config)["config"].get("Labels") or {}
    return labels


@pytest.mark.parametrize(
    ("flags", "level"),
    [
        (CORE2, ""),
        (NEHALEM, "x86-64-v2"),
        (HASWELL, "x86-64-v3"),
        (HASWELL.replace("movbe", ""), "x86-64-v2"),
        (SKYLAKE, "x86-64-v4"),
        (SKYLAKE.replace("avx2 ", ""), "x86-64-v2"),
    ],
)
def test_level_of_a_processor_is_that_of_its_flags(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: str, level: str
) -> None:
    use_processor(flags, tmp_path, monkeypatch)
    assert find_machine_level() == level


def test_level_is_a_label_and_the_variant_of_the_platform() -> None:
    config = make_config("x86-64-v3")
    assert json.loads(config)["variant"] == "v3"
    assert parse_labels(config) == {LEVEL_LABEL: "x86-64-v3"}
    assert read_image_level(config) == "x86-64-v3"
    assert "variant" not in json.loads(make_config())


def test_image_needs_what_its_base_needs() -> None:
    base = parse_image_config(make_config("x86-64-v3"))
    assert read_image_level(make_config(inherited=base)) == "x86-64-v3"
    assert read_image_level(make_config("x86-64-v2", inherited=base)) == "x86-64-v3"
    assert read_image_level(make_config("x86-64-v4", inherited=base)) == "x86-64-v4"


def test_other_architectures_have_no_levels() -> None:
    config = make_config("x86-64-v3", architecture="arm64")
    assert "variant" not in json.loads(config)
    assert parse_labels(config) == {}


@pytest.mark.parametrize("label", ["", "x86-64-v9", "v3"])
def test_images_of_others_have_the_variant_only(label: str) -> None:
    image = {
        "os": "linux",
        "architecture": "amd64",
        "variant": "v3",
        "rootfs": {"type": "layers", "diff_ids": []},
        "config": {"Labels": {LEVEL_LABEL: label}},
    }
    assert read_image_level(json.dumps(image).encode()) == "x86-64-v3"


@pytest.mark.parametrize("level", ["x86-64-v3", "x86-64-v4"])
def test_image_for_another_processor_is_refused_in_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    use_processor(NEHALEM, tmp_path, monkeypatch)
    require_processor(make_config("x86-64-v2"), "the image")
    with pytest.raises(MachineError) as caught:
        require_processor(make_config(level), "image digits:1")
    assert caught.value.message == (
        f"image digits:1 needs a processor of level {level}, and this machine's lacks avx, avx2,"
        " bmi1, bmi2, …"
    )
    assert "`variant` in base()" in caught.value.hint
    assert caught.value.exit_code == 4
    use_processor(SKYLAKE, tmp_path, monkeypatch)
    require_processor(make_config(level), "image digits:1")


@pytest.mark.parametrize("text", [None, "", "processor: 0\n", "flags\t\t:\n"])
def test_unknown_processor_refuses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    file = tmp_path / "cpuinfo"
    if text is not None:
        file.write_text(text)
    monkeypatch.setattr(processor, "_CPUINFO", file)
    assert find_machine_level() == ""
    require_processor(make_config("x86-64-v4"), "the image")


def test_nodes_are_excluded_by_what_is_known_of_them() -> None:
    arch = {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64"]}
    assert render_node_terms("amd64", "") == [{"matchExpressions": [arch]}]
    # Node Feature Discovery publishes nothing of v2.
    assert render_node_terms("amd64", "x86-64-v2") == [{"matchExpressions": [arch]}]
    discovered, others = render_node_terms("amd64", "x86-64-v3")
    keys = [expression["key"] for expression in discovered["matchExpressions"]]  # type: ignore[attr-defined]
    assert keys == [
        "kubernetes.io/arch",
        "feature.node.kubernetes.io/cpu-cpuid.AVX2",
        "feature.node.kubernetes.io/cpu-cpuid.FMA3",
        "feature.node.kubernetes.io/cpu-cpuid.MOVBE",
    ]
    unknown = {
        "key": "feature.node.kubernetes.io/cpu-model.vendor_id",
        "operator": "DoesNotExist",
    }
    assert others == {"matchExpressions": [arch, unknown]}
