"""The magics: ``%%distributed``, cells in ciao's words, ``%jobs`` and ``%danlu``.

They are loaded by ``%load_ext danlu.notebook``, inside a kernel or at IPython's prompt.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from danlu.errors import UsageError
from danlu.notebook import background, cells, jobscommand, programs, transform
from danlu.notebook.desk import Namespace
from danlu.notebook.live import Live
from danlu.notebook.pacing import Paced
from danlu.notebook.screens import CellScreen, Output, TerminalView
from danlu.notebook.sweepview import SweepLive, TerminalSweep
from danlu.notebook.told import plainly

if TYPE_CHECKING:
    from danlu.commands.settings import Settings
    from danlu.jobs.types import Jobs
    from danlu.notebook.attend import View
    from danlu.notebook.desk import SweepView

__all__ = ["Notebook", "load", "unload"]

_VARIABLE = re.compile(r"\{([^\W\d]\w*)\}")


class Notebook:
    """What cells of an IPython shell work with (:class:`danlu.notebook.desk.Desk`)."""

    def __init__(self, shell: Any) -> None:
        self._shell = shell

    @property
    def values(self) -> Namespace:
        """The variables of the user."""
        return Namespace(self._shell.user_ns)

    @property
    def settings(self) -> Settings:
        """Where things lie; read anew for each cell, which may have changed them."""
        from danlu.commands.settings import load_settings

        return load_settings()

    @property
    def directory(self) -> Path:
        """The kernel's working directory, which is the notebook's."""
        return Path.cwd()

    @property
    def is_rich(self) -> bool:
        """Whether outputs may be HTML, and replaced: in a kernel, not at a terminal."""
        return getattr(self._shell, "kernel", None) is not None

    def view(self, lines: int | None = None) -> View:
        """A new view of a job."""
        if not self.is_rich:
            return TerminalView()
        jobs = self.settings.paths.jobs
        return Live(
            CellScreen(self._shell.display_pub),
            lines=lines,
            logs=lambda name: jobs / name / "logs",
            place=self.directory,
        )

    def sweep_view(self) -> SweepView:
        """A new view of a sweep."""
        return SweepLive(Output(self._shell.display_pub)) if self.is_rich else TerminalSweep()

    def jobs(self, on: str = "") -> Jobs:
        """The jobs of a place."""
        from danlu.commands.places import jobs_on

        return jobs_on(on, self.settings)

    def show(self, data: dict[str, str]) -> None:
        """Show something by MIME type."""
        if self.is_rich:
            Output(self._shell.display_pub).show(data)
        else:
            print(data["text/plain"])

    def expanded(self, line: str) -> str:
        """``{name}`` as the value of a variable of that name; braces of another meaning stay."""
        names = self._shell.user_ns

        def value(found: re.Match[str]) -> str:
            known = names.get(found[1])
            return str(known) if isinstance(known, (str, int, float)) else found[0]

        return _VARIABLE.sub(value, line)


class Magics:
    """The magics of one shell."""

    def __init__(self, shell: Any) -> None:
        self._notebook = Notebook(shell)

    def distributed(self, line: str, cell: str) -> None:
        """Run the lines below on the replicas of a job; `%%distributed --help` lists options."""
        self.written("", f"%%{transform.OPTIONS} {line}\n{cell}")

    def written(self, line: str, cell: str) -> None:
        """Run a job's cell, which is the body as a whole."""
        from danlu.notebook.grammar import asks_help

        found = transform.options_of(cell)
        if found is not None:
            above, options, body = found
            if asks_help(options):
                from danlu.notebook.reference import help_text

                print(help_text())
                return
            cell = f"{above}%%{transform.OPTIONS} {self._notebook.expanded(options)}\n{body}"
        with plainly():
            cells.run(transform.read(cell), self._notebook)

    def jobs(self, line: str) -> None:
        """Show the jobs, or one of them: `%jobs [show|logs|attach|stop|rm NAME]`."""
        with plainly():
            jobscommand.run(line, self._notebook, self._notebook.show)

    def danlu(self, line: str) -> None:
        """Run danlu's command line, of this Python: `%danlu build`."""
        with plainly():
            _command(line, self._notebook.directory)

    def completed(self, shell: Any, event: Any) -> list[str]:
        """What may follow ``%jobs``."""
        words = event.line.split()
        if len(words) < 2 or (len(words) == 2 and event.symbol):
            return list(jobscommand.WORDS)
        return jobscommand.known(self._notebook)


def _command(line: str, directory: Path) -> None:
    try:
        words = shlex.split(line)
    except ValueError as error:
        raise UsageError(f"%danlu: {error}", hint="close the quotes") from None
    out = Paced(lambda text: print(text, end="", file=sys.stdout, flush=True))

    async def act() -> int:
        try:
            return await programs.run(programs.danlu(*words), out.line, directory=directory)
        finally:
            out.end()

    code = background.run(act, tick=out.tick)
    programs.refuse(code, f"danlu {' '.join(words[:1])}".strip())


def load(shell: Any) -> None:
    """Give ``shell`` the magics; a second time changes nothing."""
    magics = Magics(shell)
    kinds: list[tuple[Callable[..., None], str, str]] = [
        (magics.distributed, "cell", transform.OPTIONS),
        (magics.written, "cell", transform.MAGIC),
        (magics.jobs, "line", "jobs"),
        (magics.danlu, "line", "danlu"),
    ]
    for function, kind, name in kinds:
        # Braces of a pattern (`\d{3}`) are no expressions: what is meant is put in by us.
        raw: Any = function.__func__  # type: ignore[attr-defined]
        raw._ipython_magic_no_var_expand = kind == "cell"
        shell.register_magic_function(function, kind, name)
    transform.install(shell)
    shell.set_hook("complete_command", magics.completed, str_key="%jobs")


def unload(shell: Any) -> None:
    """Take them away."""
    transform.uninstall(shell)
    manager = shell.magics_manager.magics
    for kind, name in (
        ("cell", transform.OPTIONS),
        ("cell", transform.MAGIC),
        ("line", "jobs"),
        ("line", "danlu"),
    ):
        manager[kind].pop(name, None)
