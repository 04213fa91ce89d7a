"""Run a cell as a job: from the parsed cell to the results in the notebook."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from danlu.errors import UsageError
from danlu.jobs.report import job_error
from danlu.notebook import sweeps
from danlu.notebook.bundle import replica_command, write_bundle
from danlu.notebook.cell_code import check_code
from danlu.notebook.context import CellContext
from danlu.notebook.errors import cell_error
from danlu.notebook.run_job import JobOutcome
from danlu.notebook.submission import attach_and_follow, run_and_follow, run_detached
from danlu.notebook.types import Cell, CellOptions
from danlu.submission.framework_detection import detect_framework
from danlu.submission.function_transport import is_call
from danlu.submission.options import SWEEP_FIELDS, JobOptions, ReplicaResources, TrainOptions
from danlu.sweeps.options import SweepOptions, apply_target_defaults, parse_sweep_options

_NAME_ERROR = re.compile(r"NameError: name '(\w+)' is not defined.*")

#: The label of a job with the names of the variables it returns, separated by commas.
RETURNS_LABEL = "returns"

#: The label of a job that returns the variables of every replica.
EVERY_LABEL = "every"


def run_cell(cell: Cell, context: CellContext) -> None:
    """Run a cell as a job, show it, and set the variables that it returns.

    Raises :class:`~danlu.notebook.errors.CellFailed` if the job failed, :class:`UsageError` for
    invalid Python, other :class:`DanluError` if the job cannot be submitted, and
    :class:`KeyboardInterrupt`, while the job is being stopped in the background.
    """
    if not cell.is_checked:
        check_code(cell.code)
    context.jobs(cell.options.on)  # rejects an unknown target before the bundle is written
    sweep = build_sweep_options(cell.options)
    files = TemporaryDirectory(prefix="danlu-cell-", ignore_cleanup_errors=True)
    try:
        options = _prepare_cell(cell, context, Path(files.name))
    except BaseException:
        files.cleanup()
        raise
    if sweep is not None:
        result = sweeps.run_sweep_cell(sweep, options, context, files=files)
        if result is not None:
            context.values.set_results(
                result, cell.options.returns, every=cell.options.every, trusted=False
            )
    elif cell.options.detach:
        on = f" --on {options.on}" if options.on else ""
        run_detached(
            options,
            context,
            attach_command=lambda name: f"%jobs attach {name}{on}",
            lines=0,
            files=files,
        )
    else:
        outcome = run_and_follow(options, context, lines=cell.options.lines, files=files)
        _set_results(
            outcome,
            context,
            cell.options.returns,
            every=cell.options.every,
            trusted=cell.options.trust_results,
        )


def _prepare_cell(cell: Cell, context: CellContext, files: Path) -> TrainOptions:
    """Write the cell's bundle to ``files`` and return the options of its job."""
    configured_limit = context.settings.config.transfer_bytes
    write_bundle(
        cell,
        context.values,
        target=files,
        place=context.directory,
        path=context.search_path,
        limit=configured_limit if cell.options.limit is None else cell.options.limit,
        working_directory=context.working_directory,
    )
    return build_train_options(
        cell.options,
        directory=context.directory,
        command=replica_command(),
        python=sys.executable,
        files=files,
        displays=context.is_rich,
    )


def attach_cell(name: str, context: CellContext, *, on: str = "", trusted: bool = False) -> None:
    """Show a running or finished job and set the variables that it returns.

    An interrupt leaves the job running. With ``trusted`` pickled results are loaded from any image.
    Raises the same errors as :func:`run_cell`.
    """
    outcome = attach_and_follow(name, context, on=on)
    if is_call(outcome.result):
        if not outcome.summary.is_successful:
            raise job_error(outcome.summary)
        return
    labels = outcome.result.view.labels
    names = [name for name in labels.get(RETURNS_LABEL, "").split(",") if name]
    _set_results(outcome, context, names, every=EVERY_LABEL in labels, trusted=trusted)


# -- options --------------------------------------------------------------------------------------


def build_train_options(
    cell: CellOptions,
    *,
    directory: Path,
    command: tuple[str, ...],
    python: str,
    files: Path,
    displays: bool = False,
) -> TrainOptions:
    """Return the options of the training job for a cell.

    ``command`` runs the cell on a replica, which has the bundle ``files``. ``directory`` is the
    notebook's directory, ``python`` the interpreter to use if the cell names neither an image nor a
    build file. With ``displays`` the outputs of rank 0 are kept. Raises :class:`UsageError` if the
    cell names no framework and imports none.
    """
    labels = {RETURNS_LABEL: ",".join(cell.returns)} if cell.returns else {}
    if cell.every:
        labels[EVERY_LABEL] = "true"
    shared = {name: getattr(cell, name) for name in JobOptions.__struct_fields__}
    shared["framework"] = cell.framework or _detect_framework(files)
    return TrainOptions(
        directory=directory,
        command=command,
        replicas={name: replica.replicas for name, replica in cell.replicas.items()},
        resources={
            name: ReplicaResources(replica.cpu, replica.memory, replica.gpu)
            for name, replica in cell.replicas.items()
            if replica.cpu or replica.memory or replica.gpu is not None
        },
        python=python,
        labels=labels,
        files=files,
        value=_value_policy(cell),
        tied=not cell.detach,
        displays=displays,
        **shared,
    )


def _value_policy(cell: CellOptions) -> Literal["none", "leader", "all"]:
    if not cell.returns:
        return "none"
    return "all" if cell.every else "leader"


def _detect_framework(files: Path) -> str:
    """Return the framework that the code in the bundle imports."""
    for script in sorted(files.glob("cell/*.py")):
        try:
            return detect_framework(script).framework
        except UsageError as error:
            message = error.message.replace(script.name, "the cell")
            hint = "name the framework: %framework=pytorch, or --framework pytorch"
            raise UsageError(message, hint=hint) from error
    return ""


def build_sweep_options(cell: CellOptions) -> SweepOptions | None:
    """Return the options of a cell's sweep, or None if it has none; raises :class:`UsageError`."""
    if not cell.sweep:
        return None
    values = {name: getattr(cell, name) for name in SWEEP_FIELDS}
    return apply_target_defaults(parse_sweep_options(cell.sweep, **values), cell.on)


# -- results --------------------------------------------------------------------------------------


def _set_results(
    outcome: JobOutcome, context: CellContext, names: Sequence[str], *, every: bool, trusted: bool
) -> None:
    """Set the variables that a job returned, or raise why it failed."""
    if not outcome.summary.is_successful:
        error = cell_error(outcome.summary, outcome.result, trusted=trusted)
        error.hint = _undefined_name_hint(error.reason, context) or error.hint
        raise error
    context.values.set_results(outcome.result, names, every=every, trusted=trusted)


def _undefined_name_hint(reason: str, context: CellContext) -> str:
    """Return a hint if a name that the cell misses exists in the notebook."""
    match = _NAME_ERROR.fullmatch(reason)
    if match is None:
        return ""
    name = match[1]
    kind = context.values.find_kind(name)
    if not kind:
        return ""
    if kind == "module":
        return f"the notebook imports {name}: import it in the cell too"
    return f"the notebook has a variable {name}: send it with --send {name} (%send={name})"
