"""A cluster that does not answer: whoever follows a job is told so, and that it is asked on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

from danlu.errors import DanluError, OutsideError, TemporaryError
from danlu.jobs.kubernetes.objects import POD
from danlu.kube.client import Client, Selection
from danlu.kube.clock import within

__all__ = ["Silence"]

#: Seconds that an answer may take before it is said that there is none.
_PATIENCE = 5.0


class Silence:
    """Knows since when the cluster does not answer.

    A connection that ends is no silence: servers and proxies end them all the time. So what failed
    makes it only doubted, and a question of its own tells.
    """

    def __init__(self, client: Client, selection: Selection, told: Callable[[], object]) -> None:
        self._client = client
        self._selection = selection
        self._told = told
        self._doubted: datetime | None = None
        self._since: datetime | None = None

    @property
    def warnings(self) -> tuple[str, ...]:
        """What to say of it, the same for as long as one silence lasts."""
        if self._since is None:
            return ()
        when = self._since.astimezone().strftime("%H:%M:%S")
        return (f"the cluster has not answered since {when}; it is asked again until it does",)

    def failed(self, error: DanluError) -> None:
        """Hear of something that went wrong."""
        if isinstance(error, TemporaryError) and self._doubted is None:
            self._doubted = self._client.clock.now()

    async def listen(self) -> None:
        """Ask, where there is doubt; to be called again and again."""
        if self._doubted is None:
            return
        before = self._since
        if await self._answers():
            self._doubted = self._since = None
        else:
            self._since = self._doubted
        if self._since != before:
            self._told()

    async def _answers(self) -> bool:
        with within(self._client.clock, _PATIENCE):
            try:
                await self._client.page(POD, self._selection, limit=1)
            except TemporaryError:
                return False
            except OutsideError:
                pass  # a refusal is an answer
            return True
        return False
