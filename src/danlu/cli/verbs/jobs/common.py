"""What the jobs commands share: arguments that name jobs, and the place where jobs run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from danlu.cli.session import Session
    from danlu.jobs.types import Jobs

__all__ = ["JobName", "job_argument", "jobs_of"]

F = TypeVar("F", bound=Callable[..., Any])


class JobName(click.ParamType[str]):
    """The name of a job, completed from those there are."""

    name = "job"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> Any:
        """The names that begin so."""
        import anyio
        from click.shell_completion import CompletionItem

        from danlu.commands.places import jobs_on
        from danlu.commands.settings import load_settings

        on = str(ctx.params.get("on") or "")
        names = anyio.run(jobs_on(on, load_settings()).names)
        return [CompletionItem(one) for one in names if one.startswith(incomplete)]


def job_argument(name: str = "name", **options: Any) -> Callable[[F], F]:
    """An argument that names a job."""
    return click.argument(name, type=JobName(), **options)


def jobs_of(run: Session) -> Jobs:
    """Where this run's jobs are."""
    from danlu.commands.places import jobs_on

    return jobs_on(run.on, run.settings)
