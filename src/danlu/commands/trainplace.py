"""In what a job runs: an environment that is built, an image, or the present Python."""

from __future__ import annotations

import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu.errors import OutsideError, UsageError
from danlu.jobs.types import Image

if TYPE_CHECKING:
    from danlu.commands.project import Project
    from danlu.commands.settings import Settings
    from danlu.commands.trainorder import TrainOrder
    from danlu.graph import Progress

__all__ = ["HOST_IMAGE", "Place", "built", "images_of", "place_of", "present_python"]

#: What a manifest of processes says where an image must stand.
HOST_IMAGE = "python:3"


class Place(msgspec.Struct, frozen=True):
    """Where a script is to run, before anything is built.

    ``project`` is to be built, or ``reference`` to be had; neither means processes of ``python``.
    ``directory`` is the working directory, ``image`` what the manifest says, ``words`` what to
    tell the user.
    """

    directory: Path
    image: str = HOST_IMAGE
    project: Project | None = None
    reference: str = ""
    python: str = ""
    words: str = ""

    @property
    def contained(self) -> bool:
        """Whether it is a container."""
        return self.project is not None or bool(self.reference)


def place_of(order: TrainOrder, settings: Settings) -> Place:
    """Where the order says that it runs; see DESIGN section 4.

    Raises :class:`UsageError` for a build file that is not there and for orders that say two
    things at once.
    """
    chosen = {"--env": order.env, "--image": order.image, "--host-python": order.host_python}
    said = [flag for flag, value in chosen.items() if value]
    if len(said) > 1:
        raise UsageError(f"{' and '.join(said)} exclude each other", hint="give one of them")
    if order.image:
        return Place(order.directory, order.image, reference=order.image)
    if order.env or not said:
        project = _project(order, settings)
        if project is not None:
            return _built(project)
    from danlu.commands.places import is_away

    python = order.python or present_python()
    # Elsewhere it is no place at all, and whoever sends the job says so.
    words = "" if is_away(order.on) else f"processes of {python}"
    return Place(order.directory, python=python, words=words)


def _built(project: Project) -> Place:
    stem = re.sub(r"[^a-z0-9]+", "-", project.directory.name.lower()).strip("-")
    suffix = "" if project.function == "build" else f":{project.function}"
    return Place(
        project.directory,
        f"{stem or 'environment'}:latest",
        project=project,
        words=f"containers of {project.file}{suffix}",
    )


def _project(order: TrainOrder, settings: Settings) -> Project | None:
    from danlu.commands.project import BUILD_FILES, Project

    if order.env:
        return Project.open(order.env, directory=order.directory, paths=settings.paths)
    if not order.script:
        return None
    beside = (order.directory / order.script).parent
    if not any((beside / one).is_file() for one in BUILD_FILES):
        return None
    return Project.open(str(beside), directory=order.directory, paths=settings.paths)


def present_python(environ: Mapping[str, str] | None = None) -> str:
    """The Python that ``python`` means to the user, not the one that danlu is installed in.

    Raises :class:`UsageError` where there is none.
    """
    env = os.environ if environ is None else environ
    active = env.get("VIRTUAL_ENV") or env.get("CONDA_PREFIX")
    if active and os.access(own := f"{active}/bin/python", os.X_OK):
        return own
    for name in ("python", "python3"):
        found = shutil.which(name, path=env.get("PATH"))
        if found:
            return found
    return sys.executable


def images_of(
    names: Iterable[str], *, settings: Settings, progress: Progress, offline: bool = False
) -> dict[str, Image]:
    """The images that a manifest names, pulled where this machine does not have them.

    Raises :class:`UsageError` for what is no reference, :class:`OutsideError` where a registry
    does not give it.
    """
    from danlu.commands.apart import apart

    found = {name: _here(name, settings) for name in dict.fromkeys(names)}
    missing = [name for name, image in found.items() if image is None]
    if missing and offline:
        raise _not_here(missing[0])
    if missing:
        found |= apart(lambda: _pulled(missing, settings, progress))
    return {name: image for name, image in found.items() if image is not None}


def _not_here(name: str) -> UsageError:
    return UsageError(
        f"there is no image {name} here",
        hint="without --offline it is pulled; --host-python runs processes instead",
    )


def _here(name: str, settings: Settings) -> Image | None:
    from danlu.commands.images import find_image
    from danlu.store import Store

    with Store.open(settings.paths.store) as store:
        try:
            image = find_image(store, name)
        except UsageError:
            return None
    return Image(image.digest, name)


def _pulled(names: list[str], settings: Settings, progress: Progress) -> dict[str, Image]:
    import time

    from danlu.commands.imagepull import pull_image
    from danlu.graph.progress import Ended
    from danlu.sandbox import userns
    from danlu.store import Store

    began = time.monotonic()
    userns.enter(settings.paths)
    found = {}
    with Store.open(settings.paths.store) as store:
        for name in names:
            try:
                image = pull_image(store, name, settings=settings, progress=progress)
            except OutsideError as error:
                error.message = f"the image {name} is not here, and was not given: {error.message}"
                other = "--host-python runs processes instead of containers"
                error.hint = "\n".join(filter(None, (error.hint, other)))
                raise
            found[name] = Image(image.digest, name)
    progress(Ended(time.monotonic() - began))
    return found


def built(place: Place, order: TrainOrder, settings: Settings, progress: Progress) -> Image:
    """The image of the place's project, built where it is not there yet."""
    from danlu.commands.apart import apart
    from danlu.commands.known import find
    from danlu.store import Store

    assert place.project is not None
    project = place.project
    with Store.open(settings.paths.store) as store:
        known = find(store, project)
    if known is not None:
        return _unnamed(known.digest)

    def build() -> str:
        from danlu.commands.build import BuildOptions, image_of

        options = BuildOptions(offline=order.offline, frozen=order.frozen)
        return image_of(project, settings=settings, options=options, progress=progress).digest

    return _unnamed(apart(build))


def _unnamed(digest: str) -> Image:
    """A project's image: only its digest means it, whatever the manifest calls it."""
    return Image(digest, digest)
