"""The magics: ``%%distributed``, cells with directives, ``%jobs`` and ``%danlu``.

``%load_ext danlu.notebook`` loads them, in a kernel or in IPython in a terminal.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from danlu.engine.settings import Settings, load_settings
from danlu.errors import UsageError
from danlu.jobs.backends import select_backend
from danlu.jobs.local import file_exchange
from danlu.jobs.local.job_directory import JobDirectory
from danlu.jobs.types import JobBackend
from danlu.notebook import background_loop, cells, jobs_magic
from danlu.notebook.context import SweepView
from danlu.notebook.display_reader import DisplayReader
from danlu.notebook.errors import hide_traceback
from danlu.notebook.input_transformer import (
    CELL_MAGIC,
    DISTRIBUTED_MAGIC,
    install_transformers,
    parse_job_cell,
    split_distributed,
    uninstall_transformers,
)
from danlu.notebook.job_view import CellOutput, LiveJobView, TerminalJobView
from danlu.notebook.options import help_text
from danlu.notebook.parser import is_help_request
from danlu.notebook.rendering import render_mime_bundle
from danlu.notebook.run_job import JobViewer
from danlu.notebook.subprocesses import (
    ThrottledOutput,
    danlu_command,
    raise_for_exit_code,
    run_program,
)
from danlu.notebook.sweeps import LiveSweepView, TerminalSweepView
from danlu.notebook.types import Cell, VariableStore
from danlu.notebook.variables import UserNamespace

_VARIABLE = re.compile(r"\{([^\W\d]\w*)\}")

#: The kind and name of each magic.
_MAGICS = (
    ("cell", DISTRIBUTED_MAGIC),
    ("cell", CELL_MAGIC),
    ("line", "jobs"),
    ("line", "danlu"),
)


class NotebookContext:
    """The context of cells in an IPython shell (:class:`danlu.notebook.context.CellContext`)."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    @property
    def values(self) -> VariableStore:
        """The user's variables."""
        return UserNamespace(self._shell.user_ns)

    @property
    def settings(self) -> Settings:
        """The settings, reloaded for every cell because a cell may change them."""
        return load_settings()

    @property
    def directory(self) -> Path:
        """The kernel's working directory, which is the notebook's directory."""
        return Path.cwd()

    @property
    def search_path(self) -> Sequence[str]:
        """The kernel's ``sys.path`` with the working directory in place of ``""``."""
        return [entry or os.getcwd() for entry in sys.path]

    @property
    def working_directory(self) -> str:
        """Replicas of this Python run in the notebook's directory, others in the project's."""
        return ""

    @property
    def is_rich(self) -> bool:
        """Whether outputs may be HTML and replaced: in a kernel, not in a terminal."""
        return getattr(self._shell, "kernel", None) is not None

    def view(self, lines: int | None = None) -> JobViewer:
        """Create a view of a job."""
        if not self.is_rich:
            return TerminalJobView()
        publisher, jobs = self._shell.display_pub, self.settings.paths.jobs
        output = CellOutput(publisher)
        return LiveJobView(
            lambda job: output.show(render_mime_bundle(job)),
            lines=lines,
            logs=lambda name: jobs / name / "logs",
            place=self.served_directory,
            displays=DisplayReader(
                lambda name: self._find_displays(jobs / name),
                lambda data: CellOutput(publisher).show(data),
            ),
        )

    def _find_displays(self, path: Path) -> tuple[Path, bool] | None:
        """Return the file with the outputs of a local job, and whether the job is trusted."""
        job = JobDirectory(path)
        try:
            file = file_exchange.display_file(job)
            submission = job.read_submission()
        except FileNotFoundError:
            return None
        return None if file is None else (file, file_exchange.may_unpickle(submission))

    @property
    def served_directory(self) -> Path | None:
        """The directory to which links to logs are relative; None if they cannot be opened."""
        return self.directory

    def sweep_view(self) -> SweepView:
        """Create a view of a sweep."""
        if not self.is_rich:
            return TerminalSweepView()
        return LiveSweepView(CellOutput(self._shell.display_pub).show)

    def jobs(self, on: str = "") -> JobBackend:
        """Return the jobs of a target."""
        return select_backend(on, self.settings)

    def show(self, data: dict[str, str]) -> None:
        """Show data by MIME type."""
        if self.is_rich:
            CellOutput(self._shell.display_pub).show(data)
        else:
            print(data["text/plain"])

    def expand_variables(self, line: str) -> str:
        """Replace ``{name}`` with the value of that variable if it is a string or a number."""
        texts = self._find_texts(_VARIABLE.findall(line)) if "{" in line else {}
        return _VARIABLE.sub(lambda match: texts.get(match[1], match[0]), line)

    def _find_texts(self, names: Sequence[str]) -> Mapping[str, str]:
        """Return those of the variables that are strings or numbers, as text."""
        values = {name: self._shell.user_ns.get(name) for name in names}
        return {
            name: str(value)
            for name, value in values.items()
            if isinstance(value, (str, int, float))
        }


def read_job_cell(text: str, context: NotebookContext) -> Cell | None:
    """Parse a job cell; print the help instead and return None if the cell asks for it."""
    parts = split_distributed(text)
    if parts is not None:
        above, options, body = parts
        if is_help_request(options):
            print(help_text())
            return None
        text = f"{above}%%{DISTRIBUTED_MAGIC} {context.expand_variables(options)}\n{body}"
    return parse_job_cell(text)


class DanluMagics:
    """The magics of one shell."""

    def __init__(self, shell: Any) -> None:
        self._context = NotebookContext(shell)

    def run_distributed(self, line: str, cell: str) -> None:
        """Run the cell on the replicas of a job; `%%distributed --help` lists the options."""
        self.run_cell("", f"%%{DISTRIBUTED_MAGIC} {line}\n{cell}")

    def run_cell(self, line: str, cell: str) -> None:
        """Run a job cell; the input transformer passes the whole cell as the body."""
        with hide_traceback():
            parsed = read_job_cell(cell, self._context)
            if parsed is not None:
                cells.run_cell(parsed, self._context)

    def run_jobs(self, line: str) -> None:
        """List or control jobs: `%jobs [show|logs|attach|stop|rm NAME]`."""
        with hide_traceback():
            jobs_magic.run_jobs_magic(line, self._context, self._context.show)

    def run_danlu(self, line: str) -> None:
        """Run danlu's command line: `%danlu build`."""
        with hide_traceback():
            _run_command(line, self._context.directory)

    def complete_jobs(self, shell: Any, event: Any) -> list[str]:
        """Complete the arguments of ``%jobs``."""
        line = event.line if event.symbol else f"{event.line} "
        return jobs_magic.complete_arguments(line, self._context)


def _run_command(line: str, directory: Path) -> None:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%danlu: {error}", hint="close the quotes") from None
    output = ThrottledOutput(lambda text: print(text, end="", file=sys.stdout, flush=True))

    async def act() -> int:
        try:
            return await run_program(danlu_command(*words), output.line, directory=directory)
        finally:
            output.end()

    code = background_loop.run(act, tick=output.tick)
    raise_for_exit_code(code, f"danlu {' '.join(words[:1])}".strip())


def load(shell: Any) -> None:
    """Register the magics in an IPython shell. Idempotent."""
    magics = DanluMagics(shell)
    functions: tuple[Callable[..., None], ...] = (
        magics.run_distributed,
        magics.run_cell,
        magics.run_jobs,
        magics.run_danlu,
    )
    for (kind, name), function in zip(_MAGICS, functions, strict=True):
        # IPython would expand `{3}` in code such as `\d{3}`; we expand variables in options only.
        raw: Any = function.__func__  # type: ignore[attr-defined]
        raw._ipython_magic_no_var_expand = kind == "cell"
        shell.register_magic_function(function, kind, name)
    install_transformers(shell)
    shell.set_hook("complete_command", magics.complete_jobs, str_key="%jobs")


def unload(shell: Any) -> None:
    """Remove the magics from an IPython shell."""
    uninstall_transformers(shell)
    for kind, name in _MAGICS:
        shell.magics_manager.magics[kind].pop(name, None)
