"""What replicas post, verified and handed on: progress by the training-progress protocol, values.

``POST /{leader|replicas}/<replica><path of the protocol>`` and
``PUT /results/<namespace>/<job>/<replica>/{value|raised}``, with the token of the job.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Callable, Iterable

from danlu.kube.receiving import Received, Reply, refusal
from danlu.kube.types import Key
from danlu.operator.reports.keeping import MOST, Keeper, TooMuch
from danlu.operator.reports.keys import Keys
from danlu.operator.reports.maps import NameTaken, Reporter
from danlu.operator.reports.told import Speaker, Told
from danlu.training.progress import progress_of

__all__ = ["TOO_LARGE", "Desk"]

TOO_LARGE = (
    f"what a job's replicas return may have {MOST >> 10} KiB together:"
    " write more to a volume, and return where it is"
)

_NAME = r"[a-z0-9][-a-z0-9.]*"
_PROGRESS = re.compile(
    rf"(?:/(?P<role>leader|replicas)/(?P<replica>[a-z]+-\d+))?"
    rf"/apis/trainer\.kubeflow\.org/v1alpha1"
    rf"/namespaces/(?P<namespace>{_NAME})/trainjobs/(?P<name>{_NAME})/status"
)
_RESULT = re.compile(
    rf"/results/(?P<namespace>{_NAME})/(?P<name>{_NAME})/(?P<replica>[a-z]+-\d{{1,6}})"
    rf"/(?P<what>value|raised)"
)

Find = Callable[[Key], Iterable[Reporter]]
"""The jobs of that name; of several kinds there may be one each."""


class Desk:
    """Takes reports, and hands them to a :class:`Keeper`."""

    def __init__(self, keys: Keys, keeper: Keeper, *, find: Find) -> None:
        self._keys = keys
        self._keeper = keeper
        self._find = find

    async def take(self, request: Received) -> Reply:
        """The answer to one request."""
        progress, result = _PROGRESS.fullmatch(request.path), _RESULT.fullmatch(request.path)
        path = progress or result
        if path is None:
            return refusal(404, "NotFound", "nothing is taken here")
        job = self._verified(Key(path["namespace"], path["name"]), request.bearer)
        if job is None:
            return refusal(401, "Unauthorized", "the token is not that of this job")
        if request.method != ("POST" if progress else "PUT"):
            return refusal(405, "MethodNotAllowed", "progress is posted, and values are put")
        if progress:
            return self._progress(job, path, request.body)
        return await self._result(job, f"{path['what']}.{path['replica']}", request.body)

    def _verified(self, key: Key, bearer: str) -> Reporter | None:
        for job in self._find(key):
            if hmac.compare_digest(self._keys.token(key, job.uid).encode(), bearer.encode()):
                return job
        return None

    def _progress(self, job: Reporter, path: re.Match[str], body: bytes) -> Reply:
        try:
            progress = progress_of(body)
        except ValueError as error:
            return refusal(422, "Invalid", str(error))
        if progress is not None:
            speaker = Speaker.of(path["role"], path["replica"])
            self._keeper.progress(job, Told.of(speaker, progress))
        return Reply(200, body)

    async def _result(self, job: Reporter, name: str, body: bytes) -> Reply:
        try:
            await self._keeper.put(job, name, body)
        except TooMuch:
            return refusal(413, "RequestEntityTooLarge", TOO_LARGE)
        except NameTaken as error:
            return refusal(409, "Conflict", error.message)
        return Reply(200)
