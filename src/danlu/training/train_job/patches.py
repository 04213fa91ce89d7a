"""Merge what a TrainJob patches into a runtime, as Kubernetes' strategic merge patch does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

#: The key by which the items of a list are merged (``patchMergeKey``); other lists are replaced.
_MERGE_KEYS = {
    **dict.fromkeys(
        (
            *("replicatedJobs", "containers", "initContainers", "env", "volumes"),
            *("imagePullSecrets", "schedulingGates", "claims"),
        ),
        "name",
    ),
    "volumeMounts": "mountPath",
}
#: Lists whose items are replaced as a whole: a volume or variable has only one source.
_REPLACED_ITEMS = ("env", "volumes")


def merge_patch(value: Mapping[str, Any], patch: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``value`` with the fields of ``patch``; null removes a field."""
    merged = dict(value)
    for name, change in patch.items():
        if change is None:
            merged.pop(name, None)
        elif isinstance(change, Mapping):
            merged[name] = merge_patch(merged.get(name) or {}, change)
        elif isinstance(change, Sequence) and not isinstance(change, str) and name in _MERGE_KEYS:
            merged[name] = merge_lists(name, merged.get(name) or (), change)
        else:
            merged[name] = change
    return merged


def merge_lists(
    name: str, items: Sequence[Mapping[str, Any]], changes: Sequence[Mapping[str, Any]]
) -> list[Mapping[str, Any]]:
    """Return the items of the list field ``name`` with those of a patch; new ones are appended.

    Items keep their order. (Kubernetes puts new ones first or last, depending on the list; danlu
    reads no list that depends on it.)
    """
    key = _MERGE_KEYS[name]
    merged = {item.get(key): item for item in items}
    for change in changes:
        known = merged.get(change.get(key))
        if known is not None and name not in _REPLACED_ITEMS:
            change = merge_patch(known, change)
        merged[change.get(key)] = change
    return list(merged.values())
