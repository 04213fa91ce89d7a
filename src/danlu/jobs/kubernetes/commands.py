"""What a replica ran, read from its pod."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from danlu.jobs.kubernetes.documents import CODE_WORDS
from danlu.jobs.kubernetes.objects import PodObject
from danlu.jobs.types import Command
from danlu.training.framework import Framework
from danlu.training.frameworks.pods import main_container

__all__ = ["command_of"]


def command_of(pod: PodObject, framework: Framework) -> Command:
    """What the main container of a pod runs, without what only brings the code to it.

    Variables whose values only the node knows are left out.
    """
    spec: dict[str, Any] = msgspec.json.decode(pod.spec)
    main = main_container({"spec": spec}, framework.container)
    words = (*(main.get("command") or ()), *(main.get("args") or ()))
    if words[: len(CODE_WORDS)] == CODE_WORDS:
        words = words[len(CODE_WORDS) :]
    return Command(
        args=tuple(words),
        environment=_environment(main),
        directory=main.get("workingDir") or "",
        image=main.get("image") or "",
    )


def _environment(container: Mapping[str, Any]) -> dict[str, str]:
    return {
        one["name"]: str(one.get("value") or "")
        for one in container.get("env") or ()
        if not one.get("valueFrom")
    }
