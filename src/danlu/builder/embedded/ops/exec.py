"""A command run in the stack below it."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from danlu.builder.embedded.context import Context
from danlu.builder.embedded.failures import step_failure
from danlu.builder.embedded.ops.leaf import commit_tree, copy_members
from danlu.errors import UsageError
from danlu.graph import Exec
from danlu.oci.tar import Normalise
from danlu.sandbox import secrets, ssh
from danlu.sandbox.commit import finish_upper
from danlu.sandbox.types import SYSTEM_PATH, Mount, Process, Root
from danlu.sources.context import members_of
from danlu.store import Layer

__all__ = ["execute"]

#: How many lines of a failed step's output its error shows.
_LAST_LINES = 20


async def execute(op: Exec, context: Context) -> list[Layer]:
    """Run the command; what it changed is one layer, or none where it changed nothing.

    Raises :class:`StepFailed` with the last lines of output where it does not end with 0, or
    :class:`StoreError` where the disk is full then; :class:`UsageError` where it needs a secret
    or an ssh agent that the caller did not give.
    """
    last: deque[str] = deque(maxlen=_LAST_LINES)

    def heard(line: str) -> None:
        last.append(line)
        context.log(line)

    with context.store.staging() as upper, _mounts(op, context) as mounts:
        root = Root(tuple(layer.tree for layer in context.below), upper)
        process = Process(op.args, _environment(op, context), op.working_directory, op.uid, op.gid)
        code = await context.sandbox().run(process, root, mounts=mounts, on_line=heard)
        if code != 0:
            await _debug(op, context, root, mounts)
            message = f"the command ended with exit code {code}"
            raise step_failure(context, message, code=code, last=last)
        await context.run_sync(finish_upper, upper, op.epoch, below=root.layers)
        made_by = op.args[-1]
        return await commit_tree(context, upper, Normalise(clamp=op.epoch), made_by)


def _environment(op: Exec, context: Context) -> dict[str, str]:
    variables = dict(context.inputs[0].inherited.environment)
    below = variables.get("PATH", SYSTEM_PATH)
    variables.update(op.environment)
    variables.setdefault("PATH", below)
    variables["PATH"] = ":".join((*op.path, variables["PATH"]))
    variables["SOURCE_DATE_EPOCH"] = str(op.epoch)
    return variables | ssh.environment() if op.ssh else variables


@contextmanager
def _mounts(op: Exec, context: Context) -> Iterator[list[Mount]]:
    """What the step sees beside its root: secrets, the ssh agent, the project."""
    wanted = [(one.id, one.target) for one in op.secrets]
    with ExitStack() as stack:
        work = stack.enter_context(context.store.staging())
        held = secrets.mounted(wanted, context.secrets, work=work, uid=op.uid, gid=op.gid)
        mounts = list(stack.enter_context(held))
        if op.ssh:
            mounts.extend(ssh.mounts(_agent(context)))
        if op.context:
            copy = work / "project"
            copy.mkdir()
            _copy_project(context.project, copy)
            mounts.append(Mount(op.working_directory, copy, readonly=True))
        yield mounts


def _agent(context: Context) -> Path:
    """The agent the caller forwards: a build file alone must not get to use anybody's keys."""
    if context.ssh is None:
        raise UsageError(
            "this step needs an ssh agent, and the build was given none",
            hint="`danlu build --ssh default` lets it use yours",
        )
    return context.ssh


def _copy_project(project: Path, copy: Path) -> None:
    """A copy without what the ignore files name: the command sees what its key covers."""
    copy_members(project, members_of(project, "."), copy, "/")


async def _debug(op: Exec, context: Context, root: Root, mounts: list[Mount]) -> None:
    if not context.debug:
        return
    variables = _environment(op, context)
    shell = Process(
        ("/bin/bash", "-i"), variables, op.working_directory, op.uid, op.gid, terminal=True
    )
    await context.sandbox().run(shell, root, mounts=mounts, on_line=None)
