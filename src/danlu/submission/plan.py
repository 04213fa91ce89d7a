"""Plan a training job from a script, a module or a manifest. Builds and starts nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from danlu.engine.settings import Settings
from danlu.errors import UsageError
from danlu.jobs.backends import is_remote, reject_local_flags
from danlu.jobs.report import WORKSPACE
from danlu.project.project import BUILD_FILES, Project
from danlu.submission.argo import WORKFLOW_NAME, build_workflow
from danlu.submission.framework_detection import (
    detect_framework,
    detect_module_framework,
    find_module,
)
from danlu.submission.job_from_options import (
    SUFFIX_LENGTH,
    apply_ending,
    apply_queue,
    build_job_from_options,
    complete_generated_name,
)
from danlu.submission.options import TrainOptions
from danlu.submission.overrides import override_manifest
from danlu.submission.train_job_manifest import list_cluster_manifests, to_plain_manifest
from danlu.training.document import read_manifest_file
from danlu.training.framework import Framework
from danlu.training.manifest import read_job, write_job
from danlu.training.pod_template import escape_references
from danlu.training.registry import TRAIN_JOB, find_framework
from danlu.training.train_job.reader import outline_train_job, read_train_job
from danlu.training.train_job.writer import write_train_job
from danlu.training.types import Job
from danlu.util.suggest import did_you_mean
from danlu.util.yaml_with_lines import dump_yaml

#: The image in the manifest of a job that runs as processes: a manifest must have one.
HOST_IMAGE = "python:3"

_COMMENT_WIDTH = 98


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


class PlannedJob(msgspec.Struct, frozen=True):
    """A job before anything is built or started.

    Attributes:
        target: Where it runs; None if a manifest's own images are used.
        objects: Further documents of the manifest's file.
        framework_reason: Why this framework was chosen, if the user did not.
        ignored_objects: Documents of the file that have no meaning here (``Service/name``).
        document: The manifest of the job, empty for a program.
        manifests: What is created on a cluster instead of ``job``: the runtimes of a
            file, and the TrainJob.
        name_prefix: What the job's generated name begins with; empty if the user chose the name.
    """

    job: Job
    framework: str
    target: RunTarget | None
    objects: Mapping[str, Mapping[str, Any]] = {}
    framework_reason: str = ""
    ignored_objects: tuple[str, ...] = ()
    document: Mapping[str, Any] = {}
    manifests: tuple[Mapping[str, Any], ...] = ()
    name_prefix: str = ""


def plan_job(options: TrainOptions, *, settings: Settings) -> PlannedJob:
    """Return the job that the options describe.

    Raises :class:`UsageError` for contradicting options, and
    :class:`~danlu.training.manifest.ManifestError` with all errors of a manifest.
    """
    programs = [options.script, options.module, options.command, options.file]
    if sum(map(bool, programs)) != 1:
        raise UsageError(
            "a script, a module and a manifest exclude each other"
            if any(programs)
            else "nothing to run: pass a SCRIPT, -m MODULE or -f JOB.yaml",
            hint="`danlu train SCRIPT`, `danlu train -m MODULE` or `danlu train -f JOB.yaml`",
        )
    local_flags = {
        "--host-python": options.host_python,
        "--volume": options.volumes,
        "--claim": options.claims,
    }
    reject_local_flags(options.on, local_flags)
    if options.claims and not options.file:
        raise UsageError(
            "--claim is only valid with a manifest: it replaces PersistentVolumeClaims",
            hint="use --volume SRC:DST to mount a directory in the containers of a script",
        )
    planned = (
        _plan_manifest(options, settings) if options.file else _plan_program(options, settings)
    )
    if planned.manifests:
        return planned
    job = apply_queue(apply_ending(planned.job, options), options.queue)
    return msgspec.structs.replace(planned, job=job)


# -- where it runs ---------------------------------------------------------------------------------


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


# -- a script or a module -------------------------------------------------------------------------


def _plan_program(options: TrainOptions, settings: Settings) -> PlannedJob:
    if options.script and not (options.directory / options.script).is_file():
        raise UsageError(f"script {options.script} not found", hint=_script_hint(options))
    if options.module:
        find_module(options.module, options.directory)
    target = choose_target(options, settings)
    framework, reason = _choose_framework(options)
    job = build_job_from_options(
        options,
        framework,
        command=options.command or tuple(map(escape_references, _program_command(options, target))),
        image=target.image,
        directory=_container_directory(options, target),
    )
    prefix = "" if options.name else job.name[:-SUFFIX_LENGTH]
    return PlannedJob(job, framework.name, target, framework_reason=reason, name_prefix=prefix)


def _choose_framework(options: TrainOptions) -> tuple[Framework, str]:
    """Return the framework, and why it was chosen if it was detected."""
    if options.framework:
        return find_framework(options.framework), ""
    if options.script:
        found = detect_framework(options.directory / options.script)
    elif options.module:
        found = detect_module_framework(options.module, options.directory)
    else:
        raise UsageError("no framework given", hint="for example: framework='pytorch'")
    reason = f"framework {found.framework}, because {found.file} imports {found.module}"
    return find_framework(found.framework), reason


def _container_directory(options: TrainOptions, target: RunTarget) -> str:
    """Return the working directory in containers; empty for processes.

    A module is found from the current directory, as with ``python -m``.
    """
    if not target.in_container:
        return ""
    below = os.path.relpath(options.directory, target.directory) if options.module else "."
    if below.startswith(".."):
        raise UsageError(
            f"{options.directory} is outside {target.directory}, which containers see",
            hint="run danlu in the directory of the build file, or below it",
        )
    return WORKSPACE if below == "." else f"{WORKSPACE}/{below}"


def _program_command(options: TrainOptions, target: RunTarget) -> tuple[str, ...]:
    """Return the command that runs the script or the module in the working directory."""
    if options.module:
        return ("python", "-m", options.module, *options.args)
    path = (options.directory / options.script).absolute()
    script = os.path.relpath(path, target.directory)
    if script.startswith(".."):
        if target.in_container:
            raise UsageError(
                f"{options.script} is outside {target.directory}, which containers see",
                hint="run danlu in the script's directory, or move it next to the build file",
            )
        script = str(path)
    interpreter = {".py": "python", ".sh": "bash"}.get(path.suffix)
    if interpreter is not None:
        return (interpreter, script, *options.args)
    if not os.access(path, os.X_OK):
        hint = f"run `chmod +x {options.script}`; the name of a Python script ends in .py"
        raise UsageError(f"{options.script} is not executable", hint=hint)
    return (script if os.path.isabs(script) else f"./{script}", *options.args)


def _script_hint(options: TrainOptions) -> str:
    path = options.directory / options.script
    if path.suffix in (".yaml", ".yml", ".json"):
        return f"use `-f {options.script}` for a manifest"
    try:
        names = [file.name for file in path.parent.iterdir() if file.is_file()]
    except OSError:
        names = []
    return did_you_mean(path.name, names, otherwise="give the path of a Python file")


# -- a manifest -----------------------------------------------------------------------------------


def _plan_manifest(options: TrainOptions, settings: Settings) -> PlannedJob:
    _reject_script_flags(options)
    name = "stdin" if options.file == "-" else options.file
    further = [(_read_manifest(options, file), file) for file in options.further_files]
    documents = read_manifest_file(_read_manifest(options, options.file), name, further)
    framework = documents.framework
    metadata = documents.job.get("metadata") or {}
    generated = not options.name and not metadata.get("name")
    document = documents.job.with_name(
        lambda prefix: options.name or (prefix and complete_generated_name(prefix))
    )
    manifests: tuple[Mapping[str, Any], ...] = ()
    if framework is TRAIN_JOB and is_remote(options.on):
        manifests = list_cluster_manifests(document, documents, options)
        job = outline_train_job(document)
    else:
        if framework is TRAIN_JOB:
            job = read_train_job(document, documents.runtimes)
        else:
            job = read_job(document, framework)
        job = override_manifest(job, options, framework)
    chosen = options.env or options.image or options.host_python
    target = choose_target(options, settings) if chosen else None
    return PlannedJob(
        job,
        framework.name,
        target,
        documents.objects,
        ignored_objects=documents.others,
        document=document,
        manifests=manifests,
        name_prefix=job.name[:-SUFFIX_LENGTH] if generated else "",
    )


def _reject_script_flags(options: TrainOptions) -> None:
    """Reject flags for what a manifest sets itself."""
    flags: dict[str, object] = {
        "--framework": options.framework,
        "--cpu": options.cpu,
        "--memory": options.memory,
        "--gpu": bool(options.gpu),
        "--backoff-limit": options.backoff_limit is not None,
        "--restart": options.restart,
        "--deadline": options.deadline is not None,
        "--clean-pod-policy": options.clean_pod_policy,
        **{f"--{type}": True for type in options.replicas},
        "arguments": options.args,
    }
    given = [flag for flag, value in flags.items() if value]
    if given:
        raise UsageError(
            f"{', '.join(given)} cannot be combined with a manifest",
            hint=f"edit {options.file} instead; only -e, --gpu 0, --volume and --claim override it",
        )


def _read_manifest(options: TrainOptions, file: str) -> str:
    if file == "-":
        return options.text
    path = options.directory / file
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise UsageError(f"manifest {file} not found") from None
    except (IsADirectoryError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read manifest {file}: {error}") from error


def describe_missing_parts(planned: PlannedJob, options: TrainOptions) -> list[str]:
    """Return what the manifest of a script lacks to run where it is applied."""
    program = options.script or options.module
    if planned.target is None or not program or options.file:
        return []
    image = planned.target.image
    missing = [
        f"the manifest does not contain {program}: it runs where the image {image} has"
        f" {program} and its packages, or with `danlu train -f JOB.yaml --env DIR`;"
        " `danlu train … --on kubernetes` without --dry-run sends the files itself"
    ]
    if planned.target.project is not None:
        missing.append(f"the image {image} is on this machine only: danlu image push {image} REF")
    if options.volumes:
        missing.append(
            "its volumes are directories of this machine: nodes of a cluster need claims"
        )
    return missing


def list_documents(planned: PlannedJob, form: str = "yaml") -> Sequence[Mapping[str, Any]]:
    """Return the manifests as they would be sent to a cluster, or as ``argo`` the Workflow."""
    job = planned.job
    if form == "argo" and planned.name_prefix:
        # A workflow may be submitted again and again.
        job = msgspec.structs.replace(job, name=WORKFLOW_NAME)
    if planned.manifests:
        *runtimes, document = map(to_plain_manifest, planned.manifests)
        document["metadata"]["name"] = job.name
        written = [*runtimes, document]
    else:
        is_train_job = find_framework(job.kind) is TRAIN_JOB
        written = write_train_job(job) if is_train_job else [write_job(job)]
    documents = [*planned.objects.values(), *written]
    if form == "argo":
        return [build_workflow(documents, planned.name_prefix or f"{job.name}-")]
    return documents


def format_documents(
    documents: Sequence[Mapping[str, Any]], form: str = "yaml", missing: Sequence[str] = ()
) -> str:
    """Return the documents as ``json`` or as YAML, whose comments say what is ``missing``."""
    if form != "json":
        # Whatever begins a new line in a name must not end the comment.
        comments = (textwrap.wrap(" ".join(text.split()), _COMMENT_WIDTH) for text in missing)
        lines = "".join(f"# {line}\n" for comment in comments for line in comment)
        return lines + "---\n".join(dump_yaml(dict(document)) for document in documents)
    whole: Mapping[str, Any] = documents[0]
    if len(documents) > 1:
        whole = {"apiVersion": "v1", "kind": "List", "items": documents}
    return json.dumps(whole, indent=2, ensure_ascii=False) + "\n"
