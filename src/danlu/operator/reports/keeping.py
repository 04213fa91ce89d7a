"""What replicas reported, kept in a ConfigMap of their job."""

from __future__ import annotations

import base64
import logging

import anyio
from anyio.abc import TaskGroup

from danlu.errors import DanluError, TemporaryError
from danlu.kube.client import Client
from danlu.kube.clock import sleep
from danlu.operator.reports.maps import Maps, Reporter
from danlu.operator.reports.told import Told
from danlu.util.recent import Recent

__all__ = ["MOST", "Keeper", "TooMuch"]

MOST = 700 << 10
"""Bytes of all values of a job together: a ConfigMap takes a mebibyte, in base64."""

_log = logging.getLogger(__name__)
_PAUSE = 1.0
_TRIES = 5


class TooMuch(ValueError):
    """What a job's replicas reported is more than its ConfigMap takes."""


class Keeper:
    """Writes reports: progress at most once a second a job, the newest; values at once.

    Of several replicas that tell progress one counts (:class:`Speaker`), also where another process
    of the operator hears the others. :meth:`run` must run meanwhile.
    """

    def __init__(self, client: Client) -> None:
        self._clock = client.clock
        self._maps = Maps(client)
        self._group: TaskGroup | None = None
        self._newest: dict[str, Told] = {}
        self._writing: set[str] = set()
        # What each job's ConfigMap has, as far as this process knows.
        self._known: Recent[str, Told] = Recent()
        self._turns: dict[str, anyio.Lock] = {}

    async def run(self) -> None:
        """Write until cancelled."""
        async with anyio.create_task_group() as group:
            self._group = group
            await anyio.sleep_forever()

    def progress(self, job: Reporter, told: Told) -> None:
        """Keep how far a job is, soon."""
        before = self._newest.get(job.uid) or self._known.get(job.uid)
        if before is not None and before.speaker < told.speaker:
            return
        self._newest[job.uid] = told
        if job.uid not in self._writing and self._group is not None:
            self._writing.add(job.uid)
            self._group.start_soon(self._write_progress, job)

    async def put(self, job: Reporter, name: str, value: bytes) -> None:
        """Keep ``value`` under ``name`` (``value.worker-0``), in place of an earlier one.

        Raises :class:`TooMuch`, :class:`NameTaken`, and what the API server refuses.
        """
        turn = self._turns.setdefault(job.uid, anyio.Lock())
        try:
            async with turn:
                there = await self._maps.read(job)
                kept = (there or {}).get("binaryData") or {}
                others = sum(len(text) * 3 // 4 for key, text in kept.items() if key != name)
                if others + len(value) > MOST:
                    raise TooMuch(name)
                encoded = base64.b64encode(value).decode()
                await self._maps.write(job, {"binaryData": {name: encoded}})
        finally:
            if not turn.statistics().tasks_waiting:
                self._turns.pop(job.uid, None)

    # -- progress ---------------------------------------------------------------------------------

    async def _write_progress(self, job: Reporter) -> None:
        tries = _TRIES
        try:
            while (newest := self._newest.pop(job.uid, None)) is not None:
                try:
                    await self._tell(job, newest)
                    tries = _TRIES
                except TemporaryError as error:
                    tries -= 1
                    if tries:
                        self._newest.setdefault(job.uid, newest)
                    _log.info("progress of %s: %s", job.key, error)
                except DanluError as error:
                    _log.warning("progress of %s: %s", job.key, error)
                await sleep(self._clock, _PAUSE)
        finally:
            self._writing.discard(job.uid)

    async def _tell(self, job: Reporter, told: Told) -> None:
        """Write it, unless what counts more, or is newer, was written by another process.

        As long as no other writes, that is one request.
        """
        for _ in range(_TRIES):
            known = self._known.get(job.uid)
            if known is None:
                there = await self._maps.read(job)
                known = Told.read((there or {}).get("data") or {})
                if known is not None and not told.follows(known):
                    self._known.put(job.uid, known)
                    return
            elif known.speaker < told.speaker:
                return
            if known is None:
                await self._maps.write(job, {"data": told.data()})
            elif not await self._maps.replace(job, known, told):
                self._known.forget(job.uid)
                continue
            self._known.put(job.uid, told)
            return
