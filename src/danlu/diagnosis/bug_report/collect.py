"""Collect what a bug report needs, without secrets."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from danlu import __version__
from danlu.diagnosis.bug_report.bundle import (
    HEADER_NAME,
    MAX_FILE_BYTES,
    PROJECT_PREFIX,
    ReportHeader,
)
from danlu.diagnosis.doctor import run_checks
from danlu.diagnosis.version import list_versions
from danlu.engine.contexts import LOCAL
from danlu.errors import DanluError
from danlu.project.plan import PlanReport, plan_build
from danlu.util.redaction import SecretRedactor
from danlu.util.safe_paths import ProjectTree

if TYPE_CHECKING:
    from danlu.engine.settings import Settings
    from danlu.project.project import Project
    from danlu.util.paths import Paths

_MAX_LOGS = 8
_MAX_LOG_BYTES = 256 << 10

#: Variables that matter, besides ``DANLU_*``.
_VARIABLES = {
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY", "SSL_CERT_FILE", "SSL_CERT_DIR"),
    *("DOCKER_HOST", "CONTAINER_HOST", "BUILDKIT_HOST", "KUBECONFIG", "PIP_INDEX_URL"),
    *("UV_INDEX_URL", "UV_DEFAULT_INDEX", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME"),
    *("LANG", "LC_ALL", "TERM", "CUDA_VISIBLE_DEVICES"),
}


class CollectedReport(msgspec.Struct, frozen=True):
    """The files of a bundle, and what was removed from them: kinds with counts, by file."""

    header: ReportHeader
    files: dict[str, bytes]
    removed: dict[str, dict[str, int]]


class ReportCollector:
    """Collects files and removes secrets from every one of them, whatever it is."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._environ = environ
        self._redactor = SecretRedactor(environ)
        self.files: dict[str, bytes] = {}
        self.missing: list[str] = []

    @property
    def removed(self) -> dict[str, dict[str, int]]:
        """What was removed, by file and kind."""
        return {name: dict(counts) for name, counts in self._redactor.removed.items()}

    def add_text(self, name: str, text: str) -> None:
        """Add a file; bytes that are not text were replaced by the caller."""
        self.files[name] = self._redactor.redact_text(name, text).encode("utf-8", "replace")

    def redact_target(self, text: str) -> str:
        """Return the name of a function without secrets among its arguments."""
        return self._redactor.redact_text(HEADER_NAME, text)

    def add_json(self, name: str, value: object) -> None:
        """Add a value as JSON."""
        redacted = self._redactor.redact_values(name, value)
        self.files[name] = (json.dumps(redacted, indent=1, default=str) + "\n").encode()

    def add_environment(self) -> None:
        """Add the variables that matter."""
        name = "environment.json"
        chosen = [
            variable
            for variable in self._environ
            if variable.startswith("DANLU_") or variable.upper() in _VARIABLES
        ]
        values = self._redactor.redact_variables(name, self._environ, chosen)
        self.files[name] = (json.dumps(values, indent=1) + "\n").encode()

    def add_log(self, name: str, path: Path) -> None:
        """Add the end of a log; a file that cannot be read is skipped."""
        try:
            with open(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - _MAX_LOG_BYTES))
                data = file.read(_MAX_LOG_BYTES)
        except OSError:
            return
        text = data.decode("utf-8", "replace")
        if size > _MAX_LOG_BYTES:  # the first line may be the rest of a secret
            text = "[…]\n" + text.partition("\n")[2]
        self.add_text(name, text)


def collect_report(
    project: Project | None, *, settings: Settings, environ: Mapping[str, str] | None = None
) -> CollectedReport:
    """Return the files of a bug report for ``project``, or for this machine alone.

    What fails is part of the report: it never keeps one from being written.
    """
    collector = ReportCollector(os.environ if environ is None else environ)
    plan = _add_project(project, collector, settings) if project else None
    collector.add_json("versions.json", describe_machine())
    checks = [msgspec.structs.asdict(check) for check in run_checks(settings.paths, LOCAL)]
    collector.add_json("doctor.json", checks)
    collector.add_environment()
    config = settings.paths.config_file
    if config.is_file():
        collector.add_log("config.toml", config)
    for name, path in _list_logs(settings.paths):
        collector.add_log(name, path)
    target = collector.redact_target(project.target) if project else ""
    header = ReportHeader(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        danlu=__version__,
        file=project.file if project else "",
        target=target,
        platform=plan.platform if plan else "",
        missing=tuple(collector.missing),
    )
    files = {HEADER_NAME: msgspec.json.format(msgspec.json.encode(header)), **collector.files}
    return CollectedReport(header, files, collector.removed)


def describe_machine() -> dict[str, str]:
    """Return versions and the kind of machine, by name; what is missing is empty."""
    try:
        release = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        release = platform.system()
    return {**list_versions(), "distribution": release, "processor": platform.machine()}


def _add_project(
    project: Project, collector: ReportCollector, settings: Settings
) -> PlanReport | None:
    """Add the plan and the files of the project; if it cannot be planned, the reason instead."""
    names = {project.file, project.lock_path.name}
    plan: PlanReport | None = None
    try:
        environment = project.environment(offline=True)
        environments = (environment, *environment.sources.values())
        for described in environments:
            names |= set(described.project_files())
        if any(described.uses_project for described in environments):
            collector.missing.append("files that steps copy (io.copy, mount_host)")
        plan = plan_build(project, settings=settings)
        collector.add_json("plan.json", msgspec.to_builtins(plan))
    except DanluError as error:
        collector.add_text("plan-error.txt", f"{error.message}\nhint: {error.hint}\n")
    except Exception as error:
        collector.add_text("plan-error.txt", f"{type(error).__name__}: {error}\n")
    names |= set(project.texts)
    with ProjectTree(project.directory) as tree:
        for name in sorted(names):
            _add_project_file(name, tree, collector)
    return plan


def _add_project_file(name: str, tree: ProjectTree, collector: ReportCollector) -> None:
    try:
        data = tree.read_bytes(name)
    except FileNotFoundError:
        return
    except (OSError, DanluError):
        collector.missing.append(f"{name} (not a file of the project)")
        return
    if len(data) > MAX_FILE_BYTES:
        collector.missing.append(f"{name} (larger than {MAX_FILE_BYTES >> 20} MiB)")
        return
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError:
        collector.missing.append(f"{name} (not text)")
        return
    collector.add_text(f"{PROJECT_PREFIX}{os.path.normpath(name)}", text)


def _list_logs(paths: Paths) -> Iterator[tuple[str, Path]]:
    """Yield the newest logs of danlu, of jobs, and of environments."""
    for path in _list_newest(paths.logs, "*.log"):
        yield f"logs/danlu/{path.name}", path
    for directory in _list_newest(paths.jobs, "*"):
        for name in ("status.json", "events.jsonl", "supervisor.log"):
            yield f"logs/jobs/{directory.name}/{name}", directory / name
        for path in _list_newest(directory / "logs", "*"):
            yield f"logs/jobs/{directory.name}/{path.name}", path
    for directory in _list_newest(paths.environments, "*"):
        for name in ("state.json", "supervisor.log"):
            yield f"logs/environments/{directory.name}/{name}", directory / name
        for path in _list_newest(directory / "logs", "*.log"):
            yield f"logs/environments/{directory.name}/{path.name}", path


def _list_newest(directory: Path, pattern: str) -> list[Path]:
    try:
        paths = sorted(directory.glob(pattern), key=lambda path: path.lstat().st_mtime)
    except OSError:
        return []
    return paths[-_MAX_LOGS:]
