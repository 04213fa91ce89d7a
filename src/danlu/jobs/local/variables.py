"""The environment of a container as its pod says it: values, references, expansion."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

from danlu.errors import UsageError
from danlu.jobs.local.quantity import quantity

__all__ = ["Objects", "Source", "expanded", "object_data", "variables"]

Objects = Mapping[str, Mapping[str, Any]]
"""The further documents of a manifest: ``{"ConfigMap/name": document}``."""

_LABEL = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class Source:
    """What references in the environment of one pod's containers are answered from.

    ``pod`` is the pod as rendered, ``address`` and ``node`` are its IP and its machine.
    """

    def __init__(self, pod: Mapping[str, Any], objects: Objects, *, address: str, node: str):
        self.objects = objects
        self._metadata = pod.get("metadata") or {}
        self._fields = {
            "metadata.name": self._metadata.get("name", ""),
            "metadata.namespace": self._metadata.get("namespace", ""),
            "metadata.uid": self._metadata.get("uid", ""),
            "spec.nodeName": node,
            "spec.serviceAccountName": (pod.get("spec") or {}).get("serviceAccountName", "default"),
            "status.podIP": address,
            "status.podIPs": address,
            "status.hostIP": "127.0.0.1",
            "status.hostIPs": "127.0.0.1",
        }

    def field(self, path: str) -> str:
        """A field of the pod (``fieldRef``); raises :class:`UsageError` for an unknown one."""
        if path in self._fields:
            return str(self._fields[path])
        match = _LABEL.fullmatch(path)
        if match is None:
            hint = "these are known: " + ", ".join(sorted(self._fields))
            raise UsageError(f"fieldRef: there is no field {path!r} of a pod", hint=hint)
        return str((self._metadata.get(match[1]) or {}).get(match[2], ""))


def variables(
    container: Mapping[str, Any], source: Source, first: Mapping[str, str]
) -> dict[str, str]:
    """The environment of ``container``, later ones winning; ``first`` lies below it.

    Raises :class:`UsageError` for a reference to what is not there and is not optional.
    """
    found = dict(first)
    for entry in container.get("envFrom") or ():
        found.update(_from_object(entry, source))
    for entry in container.get("env") or ():
        value = _value(entry, container, source, found)
        if value is not None:
            found[entry["name"]] = value
    return found


def _from_object(entry: Mapping[str, Any], source: Source) -> dict[str, str]:
    prefix = entry.get("prefix", "")
    for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        if reference := entry.get(field):
            data = object_data(source.objects, kind, reference) or {}
            return {prefix + key: value.decode() for key, value in data.items()}
    return {}


def _value(
    entry: Mapping[str, Any],
    container: Mapping[str, Any],
    source: Source,
    before: Mapping[str, str],
) -> str | None:
    origin = entry.get("valueFrom")
    if not origin:
        return expanded(str(entry.get("value") or ""), before.get)
    if reference := origin.get("fieldRef"):
        return source.field(reference["fieldPath"])
    if reference := origin.get("resourceFieldRef"):
        return _resource(reference, container)
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if reference := origin.get(field):
            return _key(reference, kind, source)
    raise UsageError(f"the variable {entry.get('name')} has a valueFrom that is not known")


def _key(reference: Mapping[str, Any], kind: str, source: Source) -> str | None:
    data = object_data(source.objects, kind, reference)
    value = None if data is None else data.get(reference["key"])
    if value is None and not reference.get("optional"):
        raise UsageError(f"{kind} {reference.get('name')} has no key {reference['key']!r}")
    return None if value is None else value.decode()


def object_data(
    objects: Objects, kind: str, reference: Mapping[str, Any]
) -> dict[str, bytes] | None:
    """What a ConfigMap or Secret holds; None where it is not there and optional.

    ``reference`` has ``name`` (``secretName`` in volumes) and ``optional``. Raises
    :class:`UsageError` where it is not there.
    """
    name = reference.get("name") or reference.get("secretName") or ""
    document = objects.get(f"{kind}/{name}")
    if document is None:
        if reference.get("optional"):
            return None
        raise UsageError(
            f"there is no {kind} {name!r}", hint="write it into the same file, after a line `---`"
        )
    plain, encoded = ("stringData", "data") if kind == "Secret" else ("data", "binaryData")
    found = {key: base64.b64decode(text) for key, text in (document.get(encoded) or {}).items()}
    return found | {key: str(text).encode() for key, text in (document.get(plain) or {}).items()}


def _resource(reference: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    kind, _, name = reference["resource"].partition(".")
    value = ((container.get("resources") or {}).get(kind) or {}).get(name, 0)
    return str(ceil(quantity(value) / (quantity(reference.get("divisor") or 1) or 1)))


def expanded(text: str, value: Callable[[str], str | None]) -> str:
    """``text`` with ``$(NAME)`` replaced, by the rules of Kubernetes (its package ``expansion``).

    What has no value stays as it is; ``$$`` is one ``$``.
    """

    def replaced(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        found = value(match[1])
        return match[0] if found is None else found

    return re.sub(r"\$\$|\$\(([^)]*)\)", replaced, text)
