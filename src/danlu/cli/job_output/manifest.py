"""Print the manifest of a planned job, also as another kind."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danlu.cli.error_rendering import print_warning
from danlu.cli.session import Session
from danlu.errors import DifferenceFound, UsageError
from danlu.submission.kind_conversion import convert_planned_job
from danlu.submission.options import TrainOptions
from danlu.submission.plan import (
    PlannedJob,
    describe_missing_parts,
    format_documents,
    list_documents,
)
from danlu.submission.submission import preview_job

if TYPE_CHECKING:
    from danlu.jobs.services import JobPreview
    from danlu.sweeps.options import SweepOptions


def print_manifest(
    run: Session,
    planned: PlannedJob,
    options: TrainOptions,
    *,
    kind: str,
    form: str,
    sweep: SweepOptions | None = None,
) -> None:
    """Print the manifest as ``kind``, or unchanged if that is empty, and warn of what it lacks.

    With ``sweep`` it is the sweep's Experiment for Katib. Raises :class:`DifferenceFound` if the
    kind cannot express something, and :class:`~danlu.errors.UsageError` if it would be another job.
    """
    preview = preview_job(planned, options, settings=run.settings)
    if preview is not None:
        if kind or form in ("argo", "katib"):
            raise UsageError(
                f"{f'-o {form}' if form in ('argo', 'katib') else '--as'} is for a cluster",
                hint="add --on kubernetes; here --dry-run prints the request",
            )
        _print_preview(run, preview, form)
        return
    lost: tuple[str, ...] = ()
    if kind:
        planned, lost = convert_planned_job(planned, kind)
    missing = describe_missing_parts(planned, options)
    for text in (*lost, *missing):
        print_warning(text, run.terminal)
    if sweep is None:
        documents = list_documents(planned, form)
    else:
        # Most jobs need none of the sweep's modules.
        from danlu.submission.katib import build_experiment

        documents = build_experiment(planned, sweep)
    text = format_documents(documents, form, (*lost, *missing))
    run.terminal.write_stdout(text.rstrip("\n"))
    if lost:
        raise DifferenceFound(
            f"the {planned.job.kind} does not do everything that the original does",
            hint="the warnings, which are also comments of the YAML, say what is missing",
        )


def _print_preview(run: Session, preview: JobPreview, form: str) -> None:
    for note in preview.notes:
        run.terminal.info(note)
    run.terminal.write_stdout(format_documents([preview.document], form).rstrip("\n"))
