"""What is submitted to a cluster: images that its nodes can pull, and the code to run in them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from danlu.errors import UsageError
from danlu.jobs.types import Image

if TYPE_CHECKING:
    from pathlib import Path

    from danlu.commands.settings import Settings
    from danlu.commands.train import Planned
    from danlu.commands.trainorder import TrainOrder
    from danlu.commands.trainplace import Place
    from danlu.graph import Progress
    from danlu.jobs.types import Submission

__all__ = ["away", "check", "repository"]


def check(order: TrainOrder) -> None:
    """Raise :class:`UsageError` for what an order for a cluster cannot say."""
    from danlu.commands.places import sending

    sending(order.on, {"--host-python": order.host_python, "--volume": order.volumes})


def away(
    planned: Planned, order: TrainOrder, *, settings: Settings, progress: Progress
) -> Submission:
    """What is submitted to a cluster for ``planned``: environments are built and pushed.

    Raises :class:`UsageError` where there is no image to run in, or no registry to push to.
    """
    from danlu.commands.train import container_images
    from danlu.jobs.types import Submission

    place = planned.place
    names = container_images(planned.job)
    return Submission(
        job=planned.job,
        directory=(place.directory if place is not None else order.directory).absolute(),
        images=_images(place, names, order, settings=settings, progress=progress),
        objects=planned.objects,
        environment={"PYTHONUNBUFFERED": "1"},
        labels=order.labels,
        files=order.files,
        value=order.value,
        tied=order.tied,
        code={**order.code, **_code(place, order)},
    )


def _images(
    place: Place | None,
    names: list[str],
    order: TrainOrder,
    *,
    settings: Settings,
    progress: Progress,
) -> Mapping[str, Image]:
    from danlu.oci.reference import Reference

    if place is None:
        return {}
    if place.project is not None:
        reference = _pushed(place, order, settings, progress)
    elif place.reference:
        reference = place.reference
        # Not danlu pulls it: a node would find out, and nobody look there.
        Reference.parse(reference)
    else:
        raise UsageError(
            f"in which image is it to run on {order.on}?",
            hint="--image REF names one; --env FILE builds one and pushes it",
        )
    return dict.fromkeys(names, Image("", reference))


def _code(place: Place | None, order: TrainOrder) -> Mapping[str, Path]:
    if not order.script or place is None:
        return {}
    from danlu.commands.code import script_code

    return script_code(order.directory / order.script, place.directory)


def repository(place: Place, settings: Settings) -> str:
    """Where a project's image is pushed to: ``REGISTRY/NAME``.

    Raises :class:`UsageError` where the configuration names no registry.
    """
    registry = settings.config.kubernetes.registry.rstrip("/")
    if not registry:
        raise UsageError(
            "where is the image to be pushed to, so that the cluster can pull it?",
            hint=f'write `[kubernetes]` and `registry = "registry.example.org/team"` into'
            f" {settings.paths.config_file}, or push it yourself and give it by --image",
        )
    return f"{registry}/{place.image.rpartition(':')[0]}"


def _pushed(place: Place, order: TrainOrder, settings: Settings, progress: Progress) -> str:
    """The reference, by digest, of the place's project, built and pushed."""
    from danlu.commands.apart import apart
    from danlu.commands.trainplace import built

    target = repository(place, settings)
    if order.offline:
        raise UsageError("--offline: an image for a cluster has to be pushed")
    image = built(place, order, settings, progress)
    return apart(lambda: _push(image.digest, target, settings, progress))


def _push(digest: str, target: str, settings: Settings, progress: Progress) -> str:
    from danlu.commands.export import push_names
    from danlu.commands.images import find_image
    from danlu.sandbox import userns
    from danlu.store import Store

    userns.enter(settings.paths)
    tag = digest.rpartition(":")[2][:12]
    with Store.open(settings.paths.store) as store, store.lease():
        image = find_image(store, digest)
        manifest = push_names(
            store, image, [f"{target}:{tag}"], settings=settings, progress=progress
        )
    return f"{target}@{manifest}"
