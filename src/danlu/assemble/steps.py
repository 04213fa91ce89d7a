"""Steps, one over another in their order: copies, downloads, commands."""

from __future__ import annotations

import msgspec

from danlu.assemble.base import image_vertex
from danlu.assemble.layout import EXTRA_SOURCES, HOME, PROJECT, VENV, base_environment
from danlu.environment.inputs import Inputs
from danlu.environment.lock import FunctionLock, LockedPython
from danlu.environment.types import Copy, Environment, Http, Owner, Run, Step
from danlu.graph import (
    CopyContext,
    CopyImage,
    Exec,
    HttpFile,
    Merge,
    Platform,
    SecretMount,
    Unresolved,
    Vertex,
)

__all__ = ["Situation", "file_name_of", "step_over"]


class Situation(msgspec.Struct, frozen=True):
    """What all steps of one build share."""

    environment: Environment
    lock: FunctionLock | None
    inputs: Inputs
    platform: Platform
    python: LockedPython | None
    epoch: int

    @property
    def owner(self) -> Owner:
        """Who owns what steps write."""
        return self.environment.owner or Owner(0, 0)


def step_over(step: Step, below: Vertex, situation: Situation) -> Vertex:
    """``below`` with one step more."""
    if isinstance(step, Run):
        return _run(step, below, situation)
    leaf = _copy(step, situation) if isinstance(step, Copy) else _http(step, situation)
    return Vertex(Merge(), (below, leaf), name=leaf.name, branch="steps", spans=leaf.spans)


def file_name_of(step: Http) -> str:
    """The name a download gets: the one given, else the last part of the URL's path."""
    path = step.url.split("#", 1)[0].split("?", 1)[0]
    return step.filename or path.rstrip("/").rsplit("/", 1)[-1] or "download"


def _run(step: Run, below: Vertex, situation: Situation) -> Vertex:
    variables = dict(base_environment(situation.python))
    path: tuple[str, ...] = (f"{VENV}/bin",) if situation.python else ()
    for declared in situation.environment.environ:
        variables.update(declared.variables)
        path = (*declared.extra_path, *path)
    variables |= {"HOME": HOME, "PYTHONDONTWRITEBYTECODE": "1"}
    script = "\n".join(step.commands)
    op = Exec(
        args=("/bin/bash", "-euo", "pipefail", "-c", script),
        environment=tuple(sorted(variables.items())),
        working_directory=PROJECT if step.mount_host else "/",
        epoch=situation.epoch,
        path=path,
        secrets=tuple(SecretMount(one.id, one.target) for one in step.secrets),
        ssh=step.ssh,
        context=step.mount_host,
        context_digest=situation.inputs.context if step.mount_host else "",
    )
    first = step.commands[0].strip().splitlines()[0] if step.commands else ""
    more = " …" if len(step.commands) > 1 or "\n" in script.strip() else ""
    return Vertex(op, (below,), f"run {first}{more}", "steps", (step.span,))


def _copy(step: Copy, situation: Situation) -> Vertex:
    owner = situation.owner
    target = step.target if step.target.startswith("/") else f"/{step.target}"
    if not step.image:
        digest = situation.inputs.files.get(step.source, "")
        op = CopyContext(step.source, target, digest, owner.uid, owner.gid, situation.epoch)
        return Vertex(op, (), f"copy {step.source} to {step.target}", "steps", (step.span,))
    name = f"copy {step.source} of {step.image} to {step.target}"
    image = _other_image(step, situation)
    from_image = CopyImage(step.source, target, owner.uid, owner.gid, situation.epoch)
    return Vertex(from_image, (image,), name, "steps", (step.span,))


def _other_image(step: Copy, situation: Situation) -> Vertex:
    for image in situation.lock.images if situation.lock else ():
        if image.reference == step.image:
            return image_vertex(image, situation.platform, branch="steps")
    op = Unresolved("image", (step.image,))
    return Vertex(op, (), f"image {step.image}", "steps", (step.span,))


def _http(step: Http, situation: Situation) -> Vertex:
    target = f"{EXTRA_SOURCES}/{file_name_of(step)}"
    owner = situation.owner
    for locked in situation.lock.http if situation.lock else ():
        if locked.url == step.url:
            op = HttpFile(
                url=step.url,
                sha256=locked.sha256,
                target=target,
                epoch=situation.epoch,
                uid=owner.uid,
                gid=owner.gid,
            )
            return Vertex(op, (), f"download {step.url}", "steps", (step.span,))
    missing = Unresolved("HTTP file", (step.url,))
    return Vertex(missing, (), f"download {step.url}", "steps", (step.span,))
