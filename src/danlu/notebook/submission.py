"""Run jobs in a kernel, after preparing them: build, push or pull the image, free the name."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
from anyio import to_thread
from msgspec.structs import replace

from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.jobs.backends import is_remote, remove_finished_job, result_limit_note
from danlu.jobs.types import JobBackend, Submission
from danlu.notebook import background_loop
from danlu.notebook.context import CellContext
from danlu.notebook.run_job import (
    JobOutcome,
    ProgressView,
    attach_to_job,
    show_submit_error,
    submit_and_detach,
    submit_and_follow,
)
from danlu.notebook.subprocesses import (
    ReportedError,
    danlu_command,
    parse_error,
    raise_for_exit_code,
    run_program,
)
from danlu.project import build_cache
from danlu.project.build_view_model import parse_event
from danlu.project.project import Project
from danlu.store import Store
from danlu.submission.options import TrainOptions
from danlu.submission.plan import PlannedJob, RunTarget, plan_job
from danlu.submission.submission import (
    build_submission,
    image_repository,
    list_container_images,
    resolve_images,
)

#: How long a cell waits for the cleanup of an interrupted one, and how often it checks.
_CLEANUP_TIMEOUT, _POLL_SECONDS = 10.0, 0.05

#: For jobs whose files are not temporary.
NO_FILES: AbstractContextManager[object] = nullcontext()

#: How many of a failed program's last lines to include in the error.
_TAIL_LINES = 20


def run_and_follow(
    options: TrainOptions,
    context: CellContext,
    *,
    lines: int | None = None,
    files: AbstractContextManager[object] = NO_FILES,
) -> JobOutcome:
    """Run a job to its end, show it, and return how it ended, even if it failed.

    ``lines`` is how many log lines to show. ``files`` is left as soon as the job has its copies.
    An interrupt is raised immediately, and the job is stopped in the background.
    """
    jobs, view = context.jobs(options.on), context.view(lines)

    async def act() -> JobOutcome:
        with files:
            submission = await prepare_submission(options, context.settings, view, jobs=jobs)
            return await submit_and_follow(jobs, submission, view)

    return background_loop.run(act, tick=view.tick)


def run_detached(
    options: TrainOptions,
    context: CellContext,
    *,
    attach_command: Callable[[str], str],
    lines: int | None = None,
    files: AbstractContextManager[object] = NO_FILES,
) -> str:
    """Start a job that keeps running on its own, and return its name.

    ``attach_command`` returns, for that name, the command that the user is shown to follow the job.
    """
    jobs, view = context.jobs(options.on), context.view(lines)

    async def act() -> str:
        with files:
            submission = await prepare_submission(options, context.settings, view, jobs=jobs)
            command = attach_command(submission.job.name)
            return await submit_and_detach(jobs, submission, view, attach_command=command)

    return background_loop.run(act, tick=view.tick)


def attach_and_follow(name: str, context: CellContext, *, on: str = "") -> JobOutcome:
    """Show a running or finished job to its end; an interrupt leaves it running."""
    jobs, view = context.jobs(on), context.view()
    return background_loop.run(lambda: attach_to_job(jobs, name, view), tick=view.tick)


async def prepare_submission(
    options: TrainOptions, settings: Settings, view: ProgressView, *, jobs: JobBackend
) -> Submission:
    """Return what to submit, after building or pulling the image and removing a finished job.

    Cells are run again and again, so a finished job of the same name is replaced. Errors and
    interrupts end the view.
    """
    view.phase("Preparing", name=options.name)
    note = result_limit_note(options.on) if options.value != "none" else ""
    if note:
        view.add_output("danlu", note)
    try:
        if options.name:
            await _free_name(options.name, jobs)
        return await _plan_and_build(options, settings, view)
    except BaseException as error:
        show_submit_error(view, error)
        raise


async def _free_name(name: str, jobs: JobBackend) -> None:
    """Remove the finished job ``name``; if this kernel is just stopping it, wait for that."""
    with anyio.move_on_after(_CLEANUP_TIMEOUT):
        while background_loop.has_pending_cleanup() and name in await jobs.names():
            if (await jobs.view(name)).finished:
                break
            await anyio.sleep(_POLL_SECONDS)
    await remove_finished_job(jobs, name)


async def _plan_and_build(
    options: TrainOptions, settings: Settings, view: ProgressView
) -> Submission:
    # In threads, so that the view is redrawn meanwhile.
    planned = await to_thread.run_sync(lambda: plan_job(options, settings=settings))
    planned = await _ensure_images(planned, options, settings, view)
    return await to_thread.run_sync(
        lambda: build_submission(planned, options, settings=settings, progress=lambda event: None)
    )


async def _ensure_images(
    planned: PlannedJob, options: TrainOptions, settings: Settings, view: ProgressView
) -> PlannedJob:
    """Build or pull the images that are missing, so that submitting has nothing left to build."""
    target, directory = planned.target, options.directory
    remote = is_remote(options.on)
    if target is not None and target.project is not None:
        if remote:
            reference = await _push_image(target, options.on, settings, directory, view)
        elif _is_image_built(target.project, settings):
            return planned
        else:
            reference = await _build_image(target.project, directory, view)
        return replace(planned, target=replace(target, project=None, reference=reference))
    if remote:
        return planned  # nodes pull their images themselves
    names = [target.reference] if target is not None else list_container_images(planned.job)
    for name in filter(None, names):
        if not _is_image_local(name, settings):
            await _run_danlu(
                ("image", "pull", "--progress", "json", name), "Pulling", directory, view
            )
    return planned


async def _build_image(project: Project, directory: Path, view: ProgressView) -> str:
    """Build a project's image and return its config digest."""
    image = await _run_build(project, directory, view)
    return str(image["config"])


async def _push_image(
    target: RunTarget, on: str, settings: Settings, directory: Path, view: ProgressView
) -> str:
    """Build and push the image of the target's project and return its reference by digest."""
    assert target.project is not None
    repository = image_repository(target, settings, on)
    image = await _run_build(
        target.project, directory, view, "-t", f"{repository}:latest", "--push"
    )
    return f"{repository}@{image['digest']}"


async def _run_build(
    project: Project, directory: Path, view: ProgressView, *flags: str
) -> dict[str, Any]:
    """Build a project in a subprocess and return the description of the image."""
    with TemporaryDirectory(prefix="danlu-build-") as scratch:
        report = Path(scratch) / "report.json"
        file = f"{project.directory / project.file}:{project.function}"
        words = ("build", "-f", file, *flags, "--progress", "json", "--metadata-file", str(report))
        await _run_danlu(words, "Building", directory, view)
        image: dict[str, Any] = json.loads(report.read_bytes())["image"]
        return image


def _is_image_built(project: Project, settings: Settings) -> bool:
    with Store.open(settings.paths.store) as store:
        return build_cache.lookup(store, project) is not None


def _is_image_local(name: str, settings: Settings) -> bool:
    try:
        resolve_images([name], settings=settings, progress=lambda event: None, offline=True)
    except UsageError:
        return False
    return True


async def _run_danlu(
    words: tuple[str, ...], state: str, directory: Path, view: ProgressView
) -> None:
    """Run danlu with ``--progress json`` and show its progress; raise the error that it reports."""
    view.phase(state)
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    reported: list[ReportedError] = []

    def on_line(line: str) -> None:
        event, error = parse_event(line), parse_error(line)
        if event is not None:
            view.build_event(event)
        elif error is not None:
            reported.append(error)
        elif not line.startswith('{"type"'):  # neither the result nor the end of the progress
            tail.append(line)
            view.add_output(words[0], line)

    code = await run_program(danlu_command(*words), on_line, directory=directory)
    if code and reported:
        raise reported[-1].to_exception(code)
    raise_for_exit_code(code, f"danlu {' '.join(words[:2])}", lines=tuple(tail))
