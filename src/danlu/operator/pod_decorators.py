"""Pod decorators: webhooks of the cluster admin that change pods before they are created.

A decorator receives every pod with its job, and responds with a JSON patch. The fields that
identify a pod cannot be changed. If the webhook times out, returns an error, or returns an invalid
patch, its failure policy applies.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import msgspec
from jsonpatch import JsonPatch, JsonPatchException
from jsonpointer import JsonPointerException

from danlu.errors import OutsideError
from danlu.kube.http import JsonPoster
from danlu.kube.types import Manifest
from danlu.operator.types import DecoratorError, DecoratorSpec, PodDecorator

_log = logging.getLogger(__name__)
_PROTECTED_LABEL_PREFIX = "training.kubeflow.org/"


class PatchError(ValueError):
    """A JSON patch is invalid or cannot be applied."""


class _DecoratorResponse(msgspec.Struct, frozen=True):
    patch: tuple[dict[str, Any], ...] = ()


_response_decoder = msgspec.json.Decoder(_DecoratorResponse)


@asynccontextmanager
async def open_decorators(
    specs: Iterable[DecoratorSpec],
) -> AsyncIterator[tuple[PodDecorator, ...]]:
    """Open the decorators of ``specs``, in order; raises :class:`UsageError` if one is invalid."""
    async with AsyncExitStack() as stack:
        decorators = []
        for spec in specs:
            poster = JsonPoster(spec.url, seconds=spec.timeout_seconds, ca=spec.ca)
            await stack.enter_async_context(poster)
            decorators.append(HttpPodDecorator(spec, poster))
        yield tuple(decorators)


class HttpPodDecorator:
    """A decorator that is called over HTTP."""

    def __init__(self, spec: DecoratorSpec, poster: JsonPoster) -> None:
        self._spec = spec
        self._poster = poster
        self._kinds = {kind.casefold() for kind in spec.kinds}

    async def __call__(self, job: Manifest, pod: Manifest) -> Manifest:
        """Return the decorated pod.

        Raises :class:`DecoratorError` if that fails and the failure policy is *Fail*.
        """
        if self._kinds and str(job.get("kind", "")).casefold() not in self._kinds:
            return pod
        try:
            return await self._request_patch(job, pod)
        except (OutsideError, PatchError) as error:
            message = f"decorator {self._poster.name}: {error}"
            if self._spec.failure_policy == "Fail":
                raise DecoratorError(message) from error
            _log.warning("creating pod %s without %s", pod["metadata"]["name"], message)
            return pod

    async def _request_patch(self, job: Manifest, pod: Manifest) -> Manifest:
        body = await self._poster.post(msgspec.json.encode({"job": job, "pod": pod}))
        changed = apply_json_patch(pod, _decode_response(body).patch)
        before, after = _protected_fields(pod), _protected_fields(changed)
        changes = [name for name, value in before.items() if after.get(name) != value]
        if changes or after.keys() != before.keys():
            names = ", ".join(changes or sorted(after.keys() - before.keys()))
            raise PatchError(f"a decorator cannot change {names}")
        return changed


def apply_json_patch(manifest: Manifest, operations: Iterable[dict[str, Any]]) -> Manifest:
    """Return a patched copy (RFC 6902); raises :class:`PatchError` naming the operation at fault.

    The messages of the library are not passed on: they quote the pod, which may contain secrets.
    """
    result: Any = manifest
    for number, operation in enumerate(operations):
        try:
            result = JsonPatch([operation]).apply(result)
        except (JsonPatchException, JsonPointerException) as error:
            op, path = operation.get("op"), operation.get("path")
            raise PatchError(f"operation {number} ({op} {path}) failed") from error
    if not isinstance(result, dict):
        raise PatchError("the patch removes the pod")
    return result


def _decode_response(body: bytes) -> _DecoratorResponse:
    if not body.strip():
        return _DecoratorResponse()
    try:
        return _response_decoder.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PatchError(f"invalid response: {error}") from error


def _protected_fields(pod: Manifest) -> dict[str, Any]:
    """Return the fields by which the operator and the job's other pods find a pod."""
    metadata = pod.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    labels = metadata.get("labels")
    labels = labels if isinstance(labels, dict) else {}
    fields = {name: pod.get(name) for name in ("apiVersion", "kind")}
    for name in ("name", "namespace", "ownerReferences"):
        fields[f"metadata.{name}"] = metadata.get(name)
    for name, value in labels.items():
        if name.startswith(_PROTECTED_LABEL_PREFIX):
            fields[f"metadata.labels[{name}]"] = value
    return fields
