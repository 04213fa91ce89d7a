"""``danlu train``: from a script or a manifest to a job that can be submitted."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from danlu.commands.trainorder import TrainOrder
from danlu.errors import UsageError

if TYPE_CHECKING:
    from danlu.commands.settings import Settings
    from danlu.commands.trainplace import Place
    from danlu.graph import Progress
    from danlu.jobs.types import Submission
    from danlu.training.framework import Framework
    from danlu.training.types import Job

__all__ = ["Planned", "TrainOrder", "manifest_text", "plan", "submission"]


class Planned(msgspec.Struct, frozen=True):
    """A job as it was ordered, before anything is built or started.

    ``objects`` are the further documents of a manifest's file, ``guessed`` says how the framework
    was chosen where the user did not. ``place`` is None where a manifest's own images are meant.
    ``left_out`` names documents of the file that mean nothing here (``Service/name``).
    """

    job: Job
    framework: str
    place: Place | None
    objects: Mapping[str, Mapping[str, Any]] = {}
    guessed: str = ""
    left_out: tuple[str, ...] = ()


def plan(order: TrainOrder, *, settings: Settings) -> Planned:
    """The job that an order stands for; builds, pulls and runs nothing.

    Raises :class:`UsageError` of many kinds, :class:`~danlu.training.manifest.ManifestError` with
    all findings of a manifest.
    """
    if bool(order.script) + bool(order.command) + bool(order.file) != 1:
        raise UsageError(
            "what is to be trained?" if not order.file else "a script or a manifest, not both",
            hint="`danlu train SCRIPT` or `danlu train -f JOB.yaml`",
        )
    from danlu.commands.trainaway import check

    check(order)
    return _of_manifest(order, settings) if order.file else _of_script(order, settings)


# -- a script -------------------------------------------------------------------------------------


def _of_script(order: TrainOrder, settings: Settings) -> Planned:
    from danlu.commands.jobreport import WORKSPACE
    from danlu.commands.trainmanifest import job_of
    from danlu.commands.trainplace import place_of

    if order.script and not (order.directory / order.script).is_file():
        raise UsageError(f"there is no script {order.script}", hint=_nearby(order))
    place = place_of(order, settings)
    framework, guessed = _framework(order)
    inside = WORKSPACE if place.contained else ""
    command = order.command or _command(order, place)
    job = job_of(order, framework, command=command, image=place.image, directory=inside)
    return Planned(job, framework.name, place, guessed=guessed)


def _framework(order: TrainOrder) -> tuple[Framework, str]:
    from danlu.training.registry import framework_of

    if order.framework:
        return framework_of(order.framework), ""
    if not order.script:
        raise UsageError("which framework is it?", hint="say it: framework='pytorch'")
    from danlu.commands.frameworkguess import guess

    found = guess(order.directory / order.script)
    told = f"framework {found.framework}, because {found.file} imports {found.module}"
    return framework_of(found.framework), told


def _command(order: TrainOrder, place: Place) -> tuple[str, ...]:
    """The words that run the script, as they are written where the working directory is."""
    path = (order.directory / order.script).absolute()
    shown = os.path.relpath(path, place.directory)
    if shown.startswith(".."):
        if place.contained:
            raise UsageError(
                f"{order.script} is outside of {place.directory}, which containers see",
                hint="go to the directory of the script, or put it beside the build file",
            )
        shown = str(path)
    interpreter = {".py": "python", ".sh": "bash"}.get(path.suffix)
    if interpreter is not None:
        return (interpreter, shown, *order.args)
    if not os.access(path, os.X_OK):
        hint = f"`chmod +x {order.script}` makes it a program; a Python script's name ends in .py"
        raise UsageError(f"{order.script} cannot be run", hint=hint)
    return (shown if os.path.isabs(shown) else f"./{shown}", *order.args)


def _nearby(order: TrainOrder) -> str:
    from difflib import get_close_matches

    path = order.directory / order.script
    if path.suffix in (".yaml", ".yml", ".json"):
        return f"a manifest is given by `-f {order.script}`"
    try:
        names = [one.name for one in path.parent.iterdir() if one.is_file()]
    except OSError:
        names = []
    near = get_close_matches(path.name, names, 1)
    return f"did you mean {near[0]}?" if near else "give the path of a Python file"


# -- a manifest -----------------------------------------------------------------------------------


def _of_manifest(order: TrainOrder, settings: Settings) -> Planned:
    from danlu.commands.trainplace import place_of
    from danlu.training.manifest import read_documents, read_job
    from danlu.training.registry import framework_of

    _refuse_flags(order)
    name = "stdin" if order.file == "-" else order.file
    documents = read_documents(_text(order), name)
    framework = framework_of(str(documents.job.get("kind", "")))
    job = read_job(documents.job, framework)
    if order.name:
        job = msgspec.structs.replace(job, name=order.name)
    chosen = order.env or order.image or order.host_python
    place = place_of(order, settings) if chosen else None
    return Planned(job, framework.name, place, documents.objects, left_out=documents.others)


def _refuse_flags(order: TrainOrder) -> None:
    """A manifest says for itself what the flags of a script say."""
    flags: dict[str, object] = {
        "--framework": order.framework,
        "--cpu": order.cpu,
        "--memory": order.memory,
        "--gpu": order.gpu is not None,
        "--backoff-limit": order.backoff_limit is not None,
        "--restart": order.restart,
        "--deadline": order.deadline is not None,
        "--clean-pod-policy": order.clean,
        "--volume": order.volumes,
        **{f"--{one}": True for one in order.replicas},
        "arguments": order.args,
    }
    given = [flag for flag, value in flags.items() if value]
    if given:
        raise UsageError(
            f"{', '.join(given)}: the manifest says that itself",
            hint=f"write it into {order.file}; --dry-run shows what is understood",
        )


def _text(order: TrainOrder) -> str:
    if order.file == "-":
        return order.text
    path = order.directory / order.file
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"there is no manifest {order.file}") from None
    except (IsADirectoryError, UnicodeDecodeError) as error:
        raise UsageError(f"{order.file} is no manifest: {error}") from error


def manifest_text(planned: Planned, form: str) -> str:
    """The manifest as it goes to a cluster: ``yaml``, or ``json``."""
    from danlu.training.manifest import dump_yaml, write_job

    documents = [*planned.objects.values(), write_job(planned.job)]
    if form == "yaml":
        return "---\n".join(dump_yaml(dict(one)) for one in documents)
    import json

    whole: Mapping[str, Any] = documents[0]
    if len(documents) > 1:
        whole = {"apiVersion": "v1", "kind": "List", "items": documents}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"


# -- ready to run ---------------------------------------------------------------------------------


def submission(
    planned: Planned, order: TrainOrder, *, settings: Settings, progress: Progress
) -> Submission:
    """What is given to whoever runs jobs: the job, and the images or the Python it runs in.

    Environments are built and images pulled where they are not there yet; no threads may run.
    """
    from danlu.commands.places import is_away
    from danlu.commands.trainaway import away
    from danlu.commands.trainplace import built, images_of, present_python
    from danlu.jobs.types import Image, Submission

    if is_away(order.on):
        return away(planned, order, settings=settings, progress=progress)
    place, names = planned.place, container_images(planned.job)
    images: Mapping[str, Image] = {}
    if place is None:
        images = images_of(names, settings=settings, progress=progress, offline=order.offline)
    elif place.project is not None:
        image = built(place, order, settings, progress)
        images = dict.fromkeys(names, image)
    elif place.reference:
        wanted = images_of(
            [place.reference], settings=settings, progress=progress, offline=order.offline
        )
        images = dict.fromkeys(names, wanted[place.reference])
    python = place.python if place is not None and not place.contained else ""
    return Submission(
        job=planned.job,
        directory=(place.directory if place is not None else order.directory).absolute(),
        images=images,
        python=python or order.python or present_python(),
        objects=planned.objects,
        # Lines are to be seen when they are written; what the job says itself has precedence.
        environment={"PYTHONUNBUFFERED": "1"},
        labels=order.labels,
        files=order.files,
        value=order.value,
        tied=order.tied,
    )


def container_images(job: Job) -> list[str]:
    """The images of all containers of a job, each once, in the order they are named."""
    names = [
        container.get("image", "")
        for spec in job.replicas.values()
        for kind in ("initContainers", "containers")
        for container in spec.template.get("spec", {}).get(kind) or ()
    ]
    return list(dict.fromkeys(filter(None, names)))
