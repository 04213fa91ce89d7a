"""What is known of served models, on a cluster or on this machine."""

from __future__ import annotations

from datetime import datetime

import msgspec


class ServedPod(msgspec.Struct, frozen=True):
    """A pod of a served model; ``reason`` is why it is not ready, in Kubernetes' words."""

    name: str
    state: str
    restarts: int = 0
    reason: str = ""
    current: bool = True


class ServedModelView(msgspec.Struct, frozen=True):
    """A served model.

    Attributes:
        kind: ``Deployment``, ``InferenceService``, or the context of this machine that runs it.
        namespace: Empty on this machine.
        state: ``Ready``, ``Updating`` (the earlier version answers) or ``NotReady``.
        ready: The number of pods that answer.
        replicas: The number of pods that there should be.
        reason: Why it is not ready.
    """

    name: str
    namespace: str
    kind: str
    image: str
    state: str
    ready: int
    replicas: int
    url: str
    reason: str = ""
    created: datetime | None = None
    pods: tuple[ServedPod, ...] = ()
