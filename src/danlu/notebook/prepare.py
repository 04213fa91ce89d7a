"""From an order to what can be submitted, in a kernel: what is to be built is built beside it."""

from __future__ import annotations

import json
from collections import deque
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import anyio
from anyio import to_thread
from msgspec.structs import replace

from danlu.errors import UsageError
from danlu.notebook import background, programs
from danlu.notebook.attend import Preparing, unsubmitted

if TYPE_CHECKING:
    from danlu.commands.project import Project
    from danlu.commands.settings import Settings
    from danlu.commands.train import Planned
    from danlu.commands.trainorder import TrainOrder
    from danlu.commands.trainplace import Place
    from danlu.jobs.types import Jobs, Submission

__all__ = ["Preparing", "prepared", "submittable"]

#: Seconds that a cell waits for the end of what an earlier one was interrupted with.
_SETTLE = 10.0
_LOOK = 0.05

#: So many of a program's last lines are told where it fails.
_LINES = 20


async def submittable(
    order: TrainOrder, settings: Settings, view: Preparing, *, jobs: Jobs
) -> Submission:
    """What is submitted for an order, when it is built and its name is free.

    In a notebook a cell is run again and again: a finished job of its name is forgotten. What goes
    wrong, and an interrupt, is the end of the view.
    """
    view.phase("Preparing", name=order.name)
    try:
        if order.name:
            await _freed(order.name, jobs)
        return await prepared(order, settings, view)
    except BaseException as error:
        unsubmitted(view, error)
        raise


async def _freed(name: str, jobs: Jobs) -> None:
    """Forget the finished job ``name``, also one that this kernel is just about to end."""
    from danlu.commands.jobs import forget_finished

    with anyio.move_on_after(_SETTLE):
        while background.is_ending() and name in await jobs.names():
            if (await jobs.view(name)).finished:
                break
            await anyio.sleep(_LOOK)
    await forget_finished(jobs, name)


async def prepared(order: TrainOrder, settings: Settings, view: Preparing) -> Submission:
    """What is submitted for ``order``, when its environment is built or its image is here.

    Raises what planning, building and pulling raise; cancelling it ends a program that does so.
    """
    from danlu.commands.train import plan, submission

    # In a thread, so that the view is drawn meanwhile.
    planned = await to_thread.run_sync(lambda: plan(order, settings=settings))
    there = await _there(planned, order, settings, view)
    return await to_thread.run_sync(
        lambda: submission(there, order, settings=settings, progress=lambda event: None)
    )


async def _there(
    planned: Planned, order: TrainOrder, settings: Settings, view: Preparing
) -> Planned:
    """The same with every image on this machine, so that nothing is left to be made."""
    from danlu.commands.places import is_away
    from danlu.commands.train import container_images

    place = planned.place
    away = is_away(order.on)
    if place is not None and place.project is not None:
        if away:
            reference = await _pushed(place, settings, order.directory, view)
            return replace(planned, place=replace(place, project=None, reference=reference))
        if _is_built(place.project, settings):
            return planned
        digest = await _built(place.project, order.directory, view)
        return replace(planned, place=replace(place, project=None, reference=digest))
    if away:
        return planned  # nodes pull what they need
    wanted = [place.reference] if place is not None else container_images(planned.job)
    for name in filter(None, wanted):
        if not _is_here(name, settings):
            await _danlu(("image", "pull", name), "Pulling", order.directory, view)
    return planned


async def _built(project: Project, directory: Path, view: Preparing) -> str:
    """The digest of the project's image, once it is built."""
    with TemporaryDirectory(prefix="danlu-build-") as place:
        report = Path(place) / "report.json"
        file = f"{project.directory / project.file}:{project.function}"
        words = ("build", "-f", file, "--progress", "plain", "--metadata-file", str(report))
        await _danlu(words, "Building", directory, view)
        return str(json.loads(report.read_bytes())["image"]["config"])


async def _pushed(place: Place, settings: Settings, directory: Path, view: Preparing) -> str:
    """The reference, by digest, of the place's project, once it is built and pushed."""
    from danlu.commands.trainaway import repository

    assert place.project is not None
    project, target = place.project, repository(place, settings)
    with TemporaryDirectory(prefix="danlu-build-") as scratch:
        report = Path(scratch) / "report.json"
        file = f"{project.directory / project.file}:{project.function}"
        words = ("build", "-f", file, "-t", f"{target}:latest", "--push", "--progress", "plain")
        await _danlu((*words, "--metadata-file", str(report)), "Building", directory, view)
        return f"{target}@{json.loads(report.read_bytes())['image']['digest']}"


def _is_built(project: Project, settings: Settings) -> bool:
    from danlu.commands.known import find
    from danlu.store import Store

    with Store.open(settings.paths.store) as store:
        return find(store, project) is not None


def _is_here(name: str, settings: Settings) -> bool:
    from danlu.commands.trainplace import images_of

    try:
        images_of([name], settings=settings, progress=lambda event: None, offline=True)
    except UsageError:
        return False
    return True


async def _danlu(words: tuple[str, ...], state: str, directory: Path, view: Preparing) -> None:
    view.phase(state)
    last: deque[str] = deque(maxlen=_LINES)

    def told(line: str) -> None:
        last.append(line)
        view.said(words[0], line)

    code = await programs.run(programs.danlu(*words), told, directory=directory)
    programs.refuse(code, f"danlu {' '.join(words[:2])}", lines=tuple(last))
