"""Levels of x86-64 processors (x86-64 psABI, 3.1.1), as distributors and OCI's platforms name them.

An image whose programs are compiled for a level has it as a label and as the variant of its
platform (``linux/amd64/v3``). Programs end with SIGILL on processors of a lower level.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

#: The level of every image without one is ``x86-64``, which all processors have.
PROCESSOR_LEVELS = ("x86-64-v2", "x86-64-v3", "x86-64-v4")
#: The label of an image whose programs need a level.
LEVEL_LABEL = "dev.danlu.processor"
#: The architecture that has levels, in OCI's words.
LEVEL_ARCHITECTURE = "amd64"

#: What each level has in addition to the one below, as /proc/cpuinfo names it.
_FLAGS: Mapping[str, Sequence[str]] = {
    "x86-64-v2": ("cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"),
    "x86-64-v3": ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"),
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
}
#: Labels of nodes by Node Feature Discovery. It publishes none of v2, and not all of v3 (its
#: default ``attributeBlacklist``), but all processors with these have the others.
_NODE_LABELS: Mapping[str, Sequence[str]] = {
    "x86-64-v2": (),
    "x86-64-v3": ("AVX2", "FMA3", "MOVBE"),
    "x86-64-v4": ("AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL"),
}
_NODE_LABEL = "feature.node.kubernetes.io/cpu-cpuid.{}"
#: Every node that Node Feature Discovery has looked at has it.
_DISCOVERED_LABEL = "feature.node.kubernetes.io/cpu-model.vendor_id"
_ARCHITECTURE_LABEL = "kubernetes.io/arch"


def to_variant(level: str) -> str:
    """Return the variant of OCI's platform for a level: ``v3`` for ``x86-64-v3``."""
    return level.rpartition("-")[2]


def choose_level(*levels: str) -> str:
    """Return the highest of the levels; empty without levels, and for unknown ones."""
    known = [level for level in levels if level in PROCESSOR_LEVELS]
    return max(known, key=PROCESSOR_LEVELS.index, default="")


def find_missing_flags(level: str, flags: Collection[str]) -> tuple[str, ...]:
    """Return what a processor with these flags of /proc/cpuinfo lacks for a level."""
    wanted = [flag for name in _levels_up_to(level) for flag in _FLAGS[name]]
    return tuple(flag for flag in wanted if flag not in flags)


def render_node_terms(architecture: str, level: str) -> list[dict[str, object]]:
    """Return the terms of a pod's node affinity, one of which a node must match.

    They are for an image with programs for an architecture, and a level of it. Nodes that Node
    Feature Discovery has not looked at are not excluded by the level.
    """
    arch: dict[str, object] = {
        "key": _ARCHITECTURE_LABEL,
        "operator": "In",
        "values": [architecture],
    }
    names = [label for name in _levels_up_to(level) for label in _NODE_LABELS[name]]
    terms = [[arch]]
    if names:
        features: list[dict[str, object]] = [
            {"key": _NODE_LABEL.format(name), "operator": "Exists"} for name in names
        ]
        unknown: dict[str, object] = {"key": _DISCOVERED_LABEL, "operator": "DoesNotExist"}
        terms = [[arch, *features], [arch, unknown]]
    return [{"matchExpressions": term} for term in terms]


def _levels_up_to(level: str) -> tuple[str, ...]:
    return PROCESSOR_LEVELS[: PROCESSOR_LEVELS.index(level) + 1] if level else ()
