"""Prepare a planned job for submission: build, pull or push its images, and collect its code."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path

import msgspec

from danlu.engine.settings import Settings
from danlu.errors import OutsideError, UsageError
from danlu.graph.progress import Ended, Message, Progress
from danlu.image.cluster_repository import cluster_repository
from danlu.jobs.backends import find_target, is_remote
from danlu.jobs.services import JobPreview
from danlu.jobs.types import ContainerImage, Submission
from danlu.oci.reference import Reference
from danlu.project.build_cache import lookup
from danlu.project.driver_check import check_driver, check_stored_image
from danlu.project.project import Project
from danlu.sandbox import userns
from danlu.sandbox.emulation import read_image_platform
from danlu.sandbox.processor import read_image_level
from danlu.store import Store
from danlu.submission.initializers import provide_initializers
from danlu.submission.job_code import collect_module_code, collect_script_code
from danlu.submission.job_from_options import add_default_finish_timeout
from danlu.submission.options import TrainOptions
from danlu.submission.plan import PlannedJob, RunTarget, find_active_python
from danlu.submission.train_job_manifest import set_trainer_fields
from danlu.training.framework import Framework
from danlu.training.pod_template import find_main_container
from danlu.training.registry import find_job_framework
from danlu.training.types import API_VERSION, Job

#: Shows lines of logs as they are printed. A variable of the job itself takes precedence.
_ENVIRONMENT = {"PYTHONUNBUFFERED": "1"}


def build_submission(
    planned: PlannedJob, options: TrainOptions, *, settings: Settings, progress: Progress
) -> Submission:
    """Return what a job backend takes: the job, and the images or the Python it runs in.

    Builds environments, and pulls missing images or (for a cluster) pushes them. Forks, so the
    process must not have other threads. Raises :class:`UsageError` if the job has no image that the
    backend could use.
    """
    target = planned.target
    submission = _start_submission(planned, options)
    prepare = _prepare_remote if is_remote(options.on) else _prepare_local
    return prepare(submission, target, options, settings=settings, progress=progress)


def preview_job(
    planned: PlannedJob, options: TrainOptions, *, settings: Settings
) -> JobPreview | None:
    """Return what a service would be sent to start the job, without building or pushing anything.

    None if that is the job's manifest. An image that is not pushed yet is named by its tag. Raises
    :class:`UsageError` for what the service cannot do.
    """
    place = find_target(options.on, settings)
    if place.context.account is None:
        return None
    draft = _draft_remote(_start_submission(planned, options), planned.target, options, settings)
    return place.service.preview_job(draft, place)


def _start_submission(planned: PlannedJob, options: TrainOptions) -> Submission:
    target = planned.target
    return Submission(
        job=planned.job,
        directory=(target.directory if target is not None else options.directory).absolute(),
        images={},
        objects=planned.objects,
        manifests=planned.manifests,
        environment=_ENVIRONMENT,
        labels=options.labels,
        files=options.files,
        value=options.value,
        displays=options.displays,
        tied=options.tied,
        queue=options.queue,
    )


# -- on this machine ------------------------------------------------------------------------------


def _prepare_local(
    submission: Submission,
    target: RunTarget | None,
    options: TrainOptions,
    *,
    settings: Settings,
    progress: Progress,
) -> Submission:
    job = submission.job
    _check_manager(job)
    if submission.queue:
        raise UsageError(
            f"--queue {submission.queue}: a queue belongs to a cluster (--on kubernetes)",
            hint="omit it: jobs of this machine wait until their CPUs and GPUs are free",
        )
    if target is not None:
        framework, contained = find_job_framework(job), target.in_container
        job = provide_initializers(job, framework, submission.objects, contained=contained)
    names = list_container_images(job)
    resolve = partial(resolve_images, settings=settings, progress=progress, offline=options.offline)
    images: Mapping[str, ContainerImage] = {}
    # Results are only trusted from the user's own Python, and from an image built here.
    trusted = target is not None
    if target is None:
        images = resolve(names)
    elif target.in_container:
        main_images = _list_main_images(job, find_job_framework(job))
        # Sidecars and init containers keep their own images.
        images = resolve(name for name in names if name not in main_images)
        trusted = target.builds_locally and not images
        if target.project is not None:
            image = build_target_image(target, options, settings, progress)
            required = bool(options.gpu)
            check_driver(target.project, progress, required=required, config=settings.config)
        else:
            image = resolve([target.reference])[target.reference]
        images = {**images, **dict.fromkeys(main_images, image)}
    else:
        _check_commands(job)
    for digest in dict.fromkeys(image.digest for image in images.values()):
        uses_gpus = bool(options.gpu)
        check_stored_image(digest, settings, progress, uses_gpus=uses_gpus, required=True)
    python = target.python if target is not None and not target.in_container else ""
    return msgspec.structs.replace(
        submission,
        job=job,
        images=images,
        python=python or options.python or find_active_python(),
        trusted=trusted or options.trust_results or settings.config.trust_results,
    )


def _check_manager(job: Job) -> None:
    """Raise :class:`UsageError` for a job that is left to another controller."""
    manager = job.run_policy.managed_by
    if manager not in ("", find_job_framework(job).manager):
        raise UsageError(
            f"{job.name} is managed by {manager}: it cannot be run on this machine",
            hint="remove `managedBy` from the manifest",
        )


def _check_commands(job: Job) -> None:
    """Raise :class:`UsageError` for a main container without a command: a process has no image."""
    framework = find_job_framework(job)
    for type, spec in job.replicas.items():
        container = find_main_container(spec.template, framework.container)
        # Workers of MPI get the command that waits for their launcher.
        waits = not container.get("args") and framework.wrap_command(job, type, ())
        if not container.get("command") and not waits:
            raise UsageError(
                f"container {container.get('name')} of {type} has no command, and a process of"
                " this machine (--host-python) has no image to take one from",
                hint="add `command` to the manifest, or run it in its image",
            )


def list_container_images(job: Job) -> list[str]:
    """Return the images of all containers of a job, each once, in their order."""
    names = [
        container.get("image", "")
        for spec in job.replicas.values()
        for field in ("initContainers", "containers")
        for container in spec.template.get("spec", {}).get(field) or ()
    ]
    return list(dict.fromkeys(filter(None, names)))


def _list_main_images(job: Job, framework: Framework) -> list[str]:
    """Return the images of the main containers: those that --env and --image replace."""
    specs = job.replicas.values()
    mains = [find_main_container(spec.template, framework.container) for spec in specs]
    return list(dict.fromkeys(filter(None, (main.get("image", "") for main in mains))))


# -- elsewhere -------------------------------------------------------------------------------------


def _prepare_remote(
    submission: Submission,
    target: RunTarget | None,
    options: TrainOptions,
    *,
    settings: Settings,
    progress: Progress,
) -> Submission:
    job, manifests = submission.job, submission.manifests
    if job.api_version != API_VERSION and not manifests:
        raise UsageError(
            f"{job.kind} {job.api_version} can only be run on this machine: on a cluster, danlu"
            f" submits {API_VERSION}",
            hint="create it with kubectl where an operator of that kind is installed",
        )
    draft = _draft_remote(submission, target, options, settings)
    place = find_target(options.on, settings)
    # Before an image is built and pushed.
    preview = place.service.preview_job(draft, place)
    for note in preview.notes if preview is not None else ():
        progress(Message(note, 0.0))
    if target is None or target.project is None:
        return draft
    image = _build_and_push(target, options, settings, progress)
    return _replace_images(draft, options, image)


def _draft_remote(
    submission: Submission, target: RunTarget | None, options: TrainOptions, settings: Settings
) -> Submission:
    """Return the submission with the code that is sent, and the tag of an image to be pushed."""
    place = find_target(options.on, settings)
    job = place.service.complete_job(submission.job)
    # Everyone with write access to the bucket could replace what jobs return.
    trusts = False
    if place.cluster is not None:
        trusts = settings.config.kubernetes.trust_results
        if not submission.manifests:
            job = add_default_finish_timeout(job)
    draft = msgspec.structs.replace(
        submission,
        job=job,
        trusted=options.trust_results or trusts,
        displays=False,
        code={**options.code, **_collect_code(target, options)},
    )
    if target is None:
        return draft
    reference = target.reference
    if target.project is not None:
        tag = target.image.rpartition(":")[2]
        reference = f"{image_repository(target, settings, options.on)}:{tag}"
    if not reference:
        raise UsageError(
            f"an image is required to run on {place.name}",
            hint="--image REF names one; --env FILE builds one and pushes it",
        )
    # Only a node pulls it, so an invalid reference would fail where nobody looks.
    Reference.parse(reference)
    return _replace_images(draft, options, ContainerImage("", reference))


def _replace_images(
    submission: Submission, options: TrainOptions, image: ContainerImage
) -> Submission:
    """Return the submission with another image in the main containers."""
    manifests, job = submission.manifests, submission.job
    if manifests:
        flag = "--image" if options.image else "--env"
        manifests = set_trainer_fields(manifests, flag, image=image.name)
    names = _list_main_images(job, find_job_framework(job))
    images = dict.fromkeys(names, image)
    return msgspec.structs.replace(submission, manifests=manifests, images=images)


def image_repository(target: RunTarget, settings: Settings, on: str) -> str:
    """Return the repository that a project's image is pushed to: ``REGISTRY/NAME``.

    Raises :class:`UsageError` if no registry is configured for the context ``on``.
    """
    place = find_target(on, settings)
    registry = place.service.find_registry(place, settings)
    return cluster_repository(target.image.rpartition(":")[0], settings, registry)


def _build_and_push(
    target: RunTarget, options: TrainOptions, settings: Settings, progress: Progress
) -> ContainerImage:
    """Build and push the target's project, and return its image by digest."""
    repository = image_repository(target, settings, options.on)
    if options.offline:
        raise UsageError("--offline: an image for a cluster must be pushed to a registry")
    assert target.project is not None
    # Nodes don't see the project.
    project = dataclasses.replace(target.project, portable=True)
    target = msgspec.structs.replace(target, project=project)
    image = build_target_image(target, options, settings, progress)
    # The registry client takes longer to import than a local job to start.
    from danlu.image.cluster_push import push_cluster_image

    reference = push_cluster_image(image.digest, repository, settings, progress)
    with Store.open(settings.paths.store) as store:
        stored = store.image(image.digest)
    assert stored is not None
    architecture = read_image_platform(stored.config).architecture
    return ContainerImage("", reference, architecture, read_image_level(stored.config))


def _collect_code(target: RunTarget | None, options: TrainOptions) -> Mapping[str, Path]:
    """Return the files of the script or module, because nodes don't see the project."""
    if target is None:
        return {}
    if options.module:
        return collect_module_code(options.module, options.directory)
    if not options.script:
        return {}
    return collect_script_code(options.directory / options.script, target.directory)


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
        found |= userns.run_inside(
            settings.paths, lambda: _pull_images(missing, settings, progress)
        )
    return {name: image for name, image in found.items() if image is not None}


def _find_local_image(name: str, settings: Settings) -> ContainerImage | None:
    from danlu.image.manage import find_image

    with Store.open(settings.paths.store) as store:
        try:
            image = find_image(store, name)
        except UsageError:
            return None
    return ContainerImage(image.digest, name)


def _pull_images(
    names: list[str], settings: Settings, progress: Progress
) -> dict[str, ContainerImage]:
    from danlu.image.pull import pull_image

    started = time.monotonic()
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
        digest = userns.run_inside(
            settings.paths, lambda: _build_project(project, options, settings, progress)
        )
    # Only its digest identifies a project's image, whatever the manifest calls it.
    return ContainerImage(digest, digest)


def _build_project(
    project: Project, options: TrainOptions, settings: Settings, progress: Progress
) -> str:
    from danlu.project.build import find_or_build_image
    from danlu.project.build_request import BuildOptions

    build_options = BuildOptions(offline=options.offline, frozen=options.frozen)
    image = find_or_build_image(
        project, settings=settings, options=build_options, progress=progress
    )
    return image.digest
