"""Resolve the environment of a container: values, references and ``$(NAME)`` expansion."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Mapping
from math import ceil
from typing import Any

from danlu.errors import UsageError
from danlu.util.quantity import parse_quantity

ManifestObjects = Mapping[str, Mapping[str, Any]]
"""The other documents of a manifest: ``{"ConfigMap/name": document}``."""

_LABEL_PATH = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class EnvSource:
    """Resolves the references in the environment of one pod's containers.

    ``pod`` is the rendered pod, ``address`` its IP address and ``node`` the name of its machine.
    """

    def __init__(
        self, pod: Mapping[str, Any], objects: ManifestObjects, *, address: str, node: str
    ) -> None:
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
        """Return a field of the pod (``fieldRef``); raises :class:`UsageError` if unknown."""
        if path in self._fields:
            return str(self._fields[path])
        match = _LABEL_PATH.fullmatch(path)
        if match is None:
            hint = "supported fields: " + ", ".join(sorted(self._fields))
            raise UsageError(f"fieldRef: unknown field {path!r}", hint=hint)
        return str((self._metadata.get(match[1]) or {}).get(match[2], ""))


def resolve_env(
    container: Mapping[str, Any], source: EnvSource, first: Mapping[str, str]
) -> dict[str, str]:
    """Return the environment of a container; ``first`` are variables that it may override.

    Raises :class:`UsageError` for a reference to something that does not exist, unless it is
    optional.
    """
    env = dict(first)
    for entry in container.get("envFrom") or ():
        env.update(_env_from_object(entry, source))
    for entry in container.get("env") or ():
        value = _entry_value(entry, container, source, env)
        if value is not None:
            env[entry["name"]] = value
    return env


def _env_from_object(entry: Mapping[str, Any], source: EnvSource) -> dict[str, str]:
    prefix = entry.get("prefix", "")
    for field, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
        if reference := entry.get(field):
            data = object_data(source.objects, kind, reference) or {}
            return {prefix + key: value.decode() for key, value in data.items()}
    return {}


def _entry_value(
    entry: Mapping[str, Any],
    container: Mapping[str, Any],
    source: EnvSource,
    before: Mapping[str, str],
) -> str | None:
    origin = entry.get("valueFrom")
    if not origin:
        return expand_env(str(entry.get("value") or ""), before.get)
    if reference := origin.get("fieldRef"):
        return source.field(reference["fieldPath"])
    if reference := origin.get("resourceFieldRef"):
        return _resource_field(reference, container)
    for field, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
        if reference := origin.get(field):
            return _object_key(reference, kind, source)
    raise UsageError(f"variable {entry.get('name')}: unsupported valueFrom")


def _object_key(reference: Mapping[str, Any], kind: str, source: EnvSource) -> str | None:
    data = object_data(source.objects, kind, reference)
    value = None if data is None else data.get(reference["key"])
    if value is None and not reference.get("optional"):
        raise UsageError(f"{kind} {reference.get('name')} has no key {reference['key']!r}")
    return None if value is None else value.decode()


def object_data(
    objects: ManifestObjects, kind: str, reference: Mapping[str, Any]
) -> dict[str, bytes] | None:
    """Return the data of a ConfigMap or Secret; None if it does not exist and is optional.

    ``reference`` has the keys ``name`` (``secretName`` in volumes) and ``optional``. Raises
    :class:`UsageError` if the object does not exist.
    """
    name = reference.get("name") or reference.get("secretName") or ""
    document = objects.get(f"{kind}/{name}")
    if document is None:
        if reference.get("optional"):
            return None
        raise UsageError(
            f"{kind} {name!r} not found", hint="add it to the same file, after a `---` line"
        )
    plain, encoded = ("stringData", "data") if kind == "Secret" else ("data", "binaryData")
    data = {key: base64.b64decode(text) for key, text in (document.get(encoded) or {}).items()}
    return data | {key: str(text).encode() for key, text in (document.get(plain) or {}).items()}


def _resource_field(reference: Mapping[str, Any], container: Mapping[str, Any]) -> str:
    kind, _, name = reference["resource"].partition(".")
    value = ((container.get("resources") or {}).get(kind) or {}).get(name, 0)
    divisor = parse_quantity(reference.get("divisor") or 1) or 1
    return str(ceil(parse_quantity(value) / divisor))


def expand_env(text: str, value: Callable[[str], str | None]) -> str:
    """Replace ``$(NAME)`` in a text, by the rules of Kubernetes (its package ``expansion``).

    References without a value stay unchanged; ``$$`` becomes a single ``$``.
    """

    def replace_reference(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        replacement = value(match[1])
        return match[0] if replacement is None else replacement

    return re.sub(r"\$\$|\$\(([^)]*)\)", replace_reference, text)
