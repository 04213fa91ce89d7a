"""danlu's own engine: containers without a daemon, in namespaces of their supervisor."""

from __future__ import annotations

from danlu.engine.attached_process import AttachedProcess
from danlu.engine.engine import Engine, EngineFeatures, StartContainer
from danlu.util.config import Configuration
from danlu.util.paths import Paths

_PR_SET_CHILD_SUBREAPER = 36


class EmbeddedEngine(Engine):
    """Containers of this process."""

    name = "embedded"
    features = EngineFeatures(networks=("host", "private"), runs_jobs=True, runs_programs=True)

    def open_engine(
        self, paths: Paths, config: Configuration, restarted: AttachedProcess | None
    ) -> StartContainer:
        """See :class:`Engine`; this process enters new namespaces."""
        import ctypes

        from danlu.engine.embedded.container import EmbeddedStarter

        # Programs whose parent has ended become our children, where they are found and ended.
        # Nobody would wait for those of other engines, such as Podman's conmon.
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
        return EmbeddedStarter(paths, config).start_container


ENGINE = EmbeddedEngine()
