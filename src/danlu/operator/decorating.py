"""Pods changed by servers of the cluster's owner, before they are made (``--decorator``).

A server is asked for every pod, with the job beside it, and answers a JSON patch; what may not be
changed is what the pod is known by. Time-outs, refusals and bad answers follow its failure policy.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from danlu.errors import OutsideError, UsageError
from danlu.kube.types import Document
from danlu.operator.jsonpatch import Operation, PatchError, patched
from danlu.operator.types import DecoratorFailed, DecoratorSpec, PodDecorator
from danlu.training.yamltext import read_yaml

if TYPE_CHECKING:
    from danlu.kube.posting import Poster

__all__ = ["HttpDecorator", "decorators", "read_decorators"]

_log = logging.getLogger(__name__)
_OURS = "training.kubeflow.org/"


class _Answer(msgspec.Struct, frozen=True):
    patch: tuple[Operation, ...] = ()


_answers = msgspec.json.Decoder(_Answer)


@asynccontextmanager
async def decorators(specs: Iterable[DecoratorSpec]) -> AsyncIterator[tuple[PodDecorator, ...]]:
    """The decorators of ``specs``, in order, while the context lasts.

    Raises :class:`UsageError` for a URL or an authority that is none.
    """
    from danlu.kube.posting import Poster

    async with AsyncExitStack() as stack:
        found = []
        for spec in specs:
            poster = Poster(spec.url, seconds=spec.timeout_seconds, ca=spec.ca)
            found.append(HttpDecorator(spec, await stack.enter_async_context(poster)))
        yield tuple(found)


class HttpDecorator:
    """One server, asked over HTTP."""

    def __init__(self, spec: DecoratorSpec, poster: Poster) -> None:
        self._spec = spec
        self._poster = poster
        self._kinds = {kind.casefold() for kind in spec.kinds}

    async def __call__(self, job: Document, pod: Document) -> Document:
        """``pod`` as the server wants it.

        Raises :class:`DecoratorFailed` where it cannot be had and the policy is *Fail*.
        """
        if self._kinds and str(job.get("kind", "")).casefold() not in self._kinds:
            return pod
        try:
            return await self._decorated(job, pod)
        except (OutsideError, PatchError) as error:
            return self._as_it_was(pod, error)

    async def _decorated(self, job: Document, pod: Document) -> Document:
        body = await self._poster.post(msgspec.json.encode({"job": job, "pod": pod}))
        changed = patched(pod, _read(body).patch)
        before, after = _identity(pod), _identity(changed)
        touched = [name for name, value in before.items() if after.get(name) != value]
        if touched or after.keys() != before.keys():
            names = ", ".join(touched or sorted(after.keys() - before.keys()))
            raise PatchError(f"a decorator cannot change {names}")
        return changed

    def _as_it_was(self, pod: Document, error: Exception) -> Document:
        name = pod["metadata"]["name"]
        text = f"decorator {self._poster.name}: {error}"
        if self._spec.failure_policy == "Fail":
            raise DecoratorFailed(text) from error
        _log.warning("pod %s is made without %s", name, text)
        return pod


def _read(body: bytes) -> _Answer:
    """An answer; an empty one changes nothing."""
    if not body.strip():
        return _Answer()
    try:
        return _answers.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise PatchError(f"no answer of a decorator: {error}") from error


def _identity(pod: Document) -> dict[str, Any]:
    """What a pod is known by: to the operator, and to the job's other pods."""
    metadata = pod.get("metadata")
    metadata = metadata if isinstance(metadata, dict) else {}
    labels = metadata.get("labels")
    labels = labels if isinstance(labels, dict) else {}
    found = {name: pod.get(name) for name in ("apiVersion", "kind")}
    for name in ("name", "namespace", "ownerReferences"):
        found[f"metadata.{name}"] = metadata.get(name)
    ours = {name: value for name, value in labels.items() if name.startswith(_OURS)}
    return found | {f"metadata.labels[{name}]": value for name, value in ours.items()}


# -- configuration --------------------------------------------------------------------------------


def read_decorators(text: str, file: str) -> tuple[DecoratorSpec, ...]:
    """The decorators that a YAML file lists; raises :class:`UsageError` saying what is wrong."""
    found: list[Any] = []
    for value, _ in read_yaml(text, file):
        found += value if isinstance(value, list) else [value]
    try:
        specs = msgspec.convert(found, tuple[_Strict, ...])
    except msgspec.ValidationError as error:
        raise UsageError(
            f"{file} is no list of decorators: {error}",
            hint="each has url, and may have timeoutSeconds, failurePolicy, ca, kinds",
        ) from error
    return tuple(_checked(one, file) for one in specs)


class _Strict(DecoratorSpec, frozen=True, rename="camel", forbid_unknown_fields=True):
    pass


def _checked(spec: DecoratorSpec, file: str) -> DecoratorSpec:
    if spec.timeout_seconds <= 0:
        raise UsageError(f"{file}: timeoutSeconds of {spec.url} must be more than 0")
    fields = {name: getattr(spec, name) for name in DecoratorSpec.__struct_fields__}
    return DecoratorSpec(**fields)
