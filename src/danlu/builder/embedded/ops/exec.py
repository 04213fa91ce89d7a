"""Run a command of a build step in the layers below it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from danlu.builder.embedded.context import OpContext, extend_environment
from danlu.builder.embedded.staged_tree import commit_tree, copy_below
from danlu.errors import OutsideError, StepFailed, StoreError, UsageError
from danlu.graph.ops import Exec
from danlu.oci.tar import NormalizeOptions
from danlu.sandbox import secrets
from danlu.sandbox.finalize_upper import finalize_upper, give_home
from danlu.sandbox.layer_view import LayerView
from danlu.sandbox.types import Mount, ProcessSpec, RootFilesystem
from danlu.sources.build_context import list_entries
from danlu.store import Layer
from danlu.util.safe_paths import ProjectTree
from danlu.util.urls import mask_credentials


async def execute(op: Exec, context: OpContext) -> list[Layer]:
    """Run the command and return its changes as one layer, or no layer if there are none.

    Raises :class:`StepFailed` with the last lines of output if it fails, :class:`StoreError` if it
    failed because the disk is full, and :class:`UsageError` if it needs a secret or an ssh agent
    that the caller did not pass.
    """
    _require_program(op.args[0], context)
    with context.store.staging() as upper, _prepare_mounts(op, context) as mounts:
        root = RootFilesystem(tuple(layer.tree for layer in context.below), upper)
        process = ProcessSpec(
            op.args, _make_environment(op, context), op.working_directory, op.uid, op.gid
        )
        try:
            await context.run(process, root, "the command", mounts=mounts)
        except (StepFailed, StoreError):
            if context.request.debug:
                await _open_debug_shell(op, context, root, mounts)
            raise
        if op.home:
            await context.run_sync(give_home, upper, op.home, op.home_uid, op.home_gid)
        await context.run_sync(finalize_upper, upper, op.epoch, below=root.layers)
        # The command becomes part of the image's history, which everyone with the image can read.
        made_by = mask_credentials(op.args[-1])
        return await commit_tree(context, upper, NormalizeOptions(clamp=op.epoch), made_by)


def _require_program(program: str, context: OpContext) -> None:
    """Raise :class:`UsageError` if the layers below do not contain ``program``."""
    view = LayerView(tuple(layer.tree for layer in context.below))
    if program.startswith("/") and view.entry(view.resolve(program)) is None:
        raise UsageError(
            f"the image has no {program}, which run() needs",
            hint="install bash in the base image, or use an image that has it",
        )


def _make_environment(op: Exec, context: OpContext) -> dict[str, str]:
    variables = extend_environment(context.inputs[0].inherited, op.environment, op.path)
    variables["SOURCE_DATE_EPOCH"] = str(op.epoch)
    return variables | secrets.agent_environment() if op.ssh else variables


@contextmanager
def _prepare_mounts(op: Exec, context: OpContext) -> Iterator[list[Mount]]:
    """Prepare the mounts that the step declares: secrets, the ssh agent, the project."""
    wanted = [(secret.id, secret.target) for secret in op.secrets]
    with ExitStack() as stack:
        work = stack.enter_context(context.store.staging())
        secret_mounts = secrets.mount_secrets(
            wanted, context.request.secrets, work=work, uid=op.uid, gid=op.gid
        )
        mounts = list(stack.enter_context(secret_mounts))
        if op.ssh:
            mounts.extend(secrets.agent_mounts(_require_agent(context)))
        if op.context:
            copy = work / "project"
            copy.mkdir()
            _copy_project(op, context, copy)
            mounts.append(Mount(op.working_directory, copy, readonly=True))
        yield mounts


def _require_agent(context: OpContext) -> Path:
    """Return the agent to forward, which the user must have passed: keys need their consent."""
    if context.request.ssh is None:
        raise UsageError(
            "this step needs an ssh agent",
            hint="run `danlu build --ssh default` to forward yours",
        )
    return context.request.ssh


def _copy_project(op: Exec, context: OpContext, copy: Path) -> None:
    """Copy the project without ignored files, so that the step sees only what its key covers."""
    with ProjectTree(context.request.project) as tree:
        digest = copy_below(tree, list_entries(tree, "."), copy, "/")
    if digest != op.context_digest:
        raise OutsideError(
            "the project changed while it was being copied for a step", hint="build again"
        )


async def _open_debug_shell(
    op: Exec, context: OpContext, root: RootFilesystem, mounts: list[Mount]
) -> None:
    variables = _make_environment(op, context)
    shell = ProcessSpec(
        ("/bin/bash", "-i"), variables, op.working_directory, op.uid, op.gid, terminal=True
    )
    await context.sandbox().run(shell, root, mounts=mounts, on_line=None)
