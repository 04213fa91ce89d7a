"""Choose what a job runs in: an environment to build, an image, or the active Python."""

from __future__ import annotations

import os
import re
import shutil
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from danlu.commands.build_cache import lookup
from danlu.commands.jobs.targets import is_remote
from danlu.commands.project import BUILD_FILES, Project
from danlu.commands.settings import Settings
from danlu.commands.train.options import TrainOptions
from danlu.errors import OutsideError, UsageError
from danlu.graph.progress import Ended, Progress
from danlu.jobs.types import ContainerImage
from danlu.store import Store
from danlu.util.fork import run_in_child

#: The image in the manifest of a job that runs as processes: a manifest must have one.
HOST_IMAGE = "python:3"


class RunTarget(msgspec.Struct, frozen=True):
    """Where a script runs, before anything is built.

    It is the environment of ``project``, the image ``reference``, or (with neither) processes of
    ``python``.

    Attributes:
        directory: The working directory.
        image: The image in the manifest.
        description: How replicas run, for the user: "running replicas in containers of build.envd".
        builds_locally: Whether danlu builds the image from the user's own file.
    """

    directory: Path
    image: str = HOST_IMAGE
    project: Project | None = None
    reference: str = ""
    python: str = ""
    description: str = ""
    builds_locally: bool = False

    @property
    def in_container(self) -> bool:
        """Whether replicas are containers."""
        return self.project is not None or bool(self.reference)


def choose_target(options: TrainOptions, settings: Settings) -> RunTarget:
    """Return where the job runs.

    That is ``--env``, ``--image`` or ``--host-python``; without these the environment of the
    script's directory, else the active Python. Raises :class:`UsageError` if a build file is
    missing or the options contradict each other.
    """
    flags = {"--env": options.env, "--image": options.image, "--host-python": options.host_python}
    given = [flag for flag, value in flags.items() if value]
    if len(given) > 1:
        raise UsageError(f"{' and '.join(given)} exclude each other", hint="use one of them")
    if options.image:
        return RunTarget(options.directory, options.image, reference=options.image)
    if options.env or not given:
        project = _find_project(options, settings)
        if project is not None:
            return _project_target(project)
    python = options.python or find_active_python()
    # On a cluster this is an error, which build_submission reports.
    description = "" if is_remote(options.on) else f"running replicas as processes of {python}"
    return RunTarget(options.directory, python=python, description=description)


def _project_target(project: Project) -> RunTarget:
    stem = re.sub(r"[^a-z0-9]+", "-", project.directory.name.lower()).strip("-")
    suffix = "" if project.target == "build" else f":{project.target}"
    return RunTarget(
        project.directory,
        f"{stem or 'environment'}:latest",
        project=project,
        description=f"running replicas in containers of {project.file}{suffix}",
        builds_locally=True,
    )


def _find_project(options: TrainOptions, settings: Settings) -> Project | None:
    """Return the project of ``--env``, or the one with a build file next to the script."""
    if options.env:
        return Project.open(options.env, directory=options.directory, paths=settings.paths)
    if not options.script and not options.module:
        return None
    directory = options.directory
    if options.script:
        directory = (options.directory / options.script).parent
    if not any((directory / name).is_file() for name in BUILD_FILES):
        return None
    return Project.open(str(directory), directory=options.directory, paths=settings.paths)


def find_active_python(environ: Mapping[str, str] | None = None) -> str:
    """Return the Python that ``python`` means in the user's shell, not the one danlu runs in."""
    env = os.environ if environ is None else environ
    active = env.get("VIRTUAL_ENV") or env.get("CONDA_PREFIX")
    if active and os.access(python := f"{active}/bin/python", os.X_OK):
        return python
    for name in ("python", "python3"):
        path = shutil.which(name, path=env.get("PATH"))
        if path:
            return path
    return sys.executable


# -- images ---------------------------------------------------------------------------------------

# The registry client and the builder are imported only when something is pulled or built: that
# takes longer than a job of processes, or with an image in the store, needs to start.


def resolve_images(
    names: Iterable[str], *, settings: Settings, progress: Progress, offline: bool = False
) -> dict[str, ContainerImage]:
    """Return the images by name, and pull those that are not in the local store.

    Raises :class:`UsageError` for an invalid reference, :class:`OutsideError` if a pull fails.
    """
    found = {name: _find_local_image(name, settings) for name in dict.fromkeys(names)}
    missing = [name for name, image in found.items() if image is None]
    if missing and offline:
        raise UsageError(
            f"image {missing[0]} not found in the local store",
            hint="omit --offline to pull it, or use --host-python to run processes instead",
        )
    if missing:
        found |= run_in_child(lambda: _pull_images(missing, settings, progress))
    return {name: image for name, image in found.items() if image is not None}


def _find_local_image(name: str, settings: Settings) -> ContainerImage | None:
    from danlu.commands.image.manage import find_image

    with Store.open(settings.paths.store) as store:
        try:
            image = find_image(store, name)
        except UsageError:
            return None
    return ContainerImage(image.digest, name)


def _pull_images(
    names: list[str], settings: Settings, progress: Progress
) -> dict[str, ContainerImage]:
    from danlu.commands.image.pull import pull_image
    from danlu.sandbox import userns

    started = time.monotonic()
    userns.enter(settings.paths)
    images = {}
    with Store.open(settings.paths.store) as store:
        for name in names:
            try:
                image, _ = pull_image(store, name, settings=settings, progress=progress)
            except OutsideError as error:
                error.message = f"cannot pull {name}: {error.message}"
                alternative = "or use --host-python to run processes instead of containers"
                error.hint = "\n".join(filter(None, (error.hint, alternative)))
                raise
            images[name] = ContainerImage(image.digest, name)
    progress(Ended(time.monotonic() - started))
    return images


def build_target_image(
    target: RunTarget, options: TrainOptions, settings: Settings, progress: Progress
) -> ContainerImage:
    """Return the image of the target's project; build it if necessary."""
    assert target.project is not None
    project = target.project
    with Store.open(settings.paths.store) as store:
        known = lookup(store, project)
    digest = str(known.digest) if known is not None else ""
    if not digest:
        digest = run_in_child(lambda: _build_project(project, options, settings, progress))
    # Only its digest identifies a project's image, whatever the manifest calls it.
    return ContainerImage(digest, digest)


def _build_project(
    project: Project, options: TrainOptions, settings: Settings, progress: Progress
) -> str:
    from danlu.commands.build import find_or_build_image
    from danlu.commands.build_request import BuildOptions

    build_options = BuildOptions(offline=options.offline, frozen=options.frozen)
    image = find_or_build_image(
        project, settings=settings, options=build_options, progress=progress
    )
    return image.digest
