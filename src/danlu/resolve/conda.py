"""Resolve the conda packages of an environment."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence

from danlu.environment.conda import CondaChannels, CondaPackages
from danlu.environment.lock import LockedBase, LockedCondaPackage
from danlu.environment.requirements import list_all_conda_packages
from danlu.environment.types import Environment
from danlu.errors import DanluError, Span, UsageError
from danlu.resolve.context import ResolveContext
from danlu.sources.conda.channels import confine_channels, read_channel_settings
from danlu.sources.conda.match_spec import split_spec
from danlu.sources.conda.solve import CondaRequest, CondaSpec, solve_packages
from danlu.sources.environment_file import CondaEnvironmentFile, parse_environment_file
from danlu.util.safe_paths import ProjectTree


async def resolve_conda(
    environment: Environment,
    base: LockedBase,
    kept: Sequence[LockedCondaPackage],
    context: ResolveContext,
) -> tuple[LockedCondaPackage, ...]:
    """Return all conda packages that the environment needs, sorted by name.

    ``kept`` versions stay if possible. Raises :class:`ResolveError` with the responsible line,
    :class:`OutsideError` for a channel that does not respond.
    """
    declared = list_all_conda_packages(environment)
    try:
        files = [_read_file(item, context) for item in declared if item.env_file]
        specs = [split_spec(name) for item in declared for name in item.names]
        specs += [split_spec(spec) for file in files for _, spec in file.specs]
        if not specs:
            return ()
        settings = read_channel_settings(environment.find(CondaChannels), context.config)
        asked = [channel for item in declared for channel in item.channels]
        asked += [channel for file in files for channel in file.channels]
        confine_channels(
            [*asked, *(channel for channel, _ in specs if channel)],
            environment.find(CondaChannels),
            context.config,
            context.project,
        )
        # A channel that only one package names comes last: the others should not come from it.
        names = settings.list_names(asked)
        for channel, _ in specs:
            if channel:
                names.setdefault(settings.find_name(channel), channel)
        request = CondaRequest(
            specs=tuple(
                CondaSpec(text, settings.find_name(channel) if channel else "")
                for channel, text in specs
            ),
            channels={
                name: (text,)
                if "://" in text and name not in settings.mirrors
                else settings.locate(name, context.project)
                for name, text in names.items()
            },
            libc=base.libc,
            architecture=context.platform.architecture,
            cache=context.paths.cache / "conda",
            kept=tuple(package for package in kept if not context.may_change(package.name)),
            offline=context.offline,
            virtual_packages=choose_virtual_packages(environment),
        )
        return await solve_packages(request)
    except DanluError as error:
        error.span = error.span or _find_span(declared, (error.message, *error.details))
        raise


def choose_virtual_packages(environment: Environment) -> dict[str, str]:
    """Return versions of conda's virtual packages that differ from those of the base.

    conda's variables (``CONDA_OVERRIDE_CUDA``) win over what the build file declares; an empty one
    means that the machine lacks it.
    """
    chosen: dict[str, str] = {}
    for declaration in environment.declarations:
        chosen.update(declaration.virtual_packages())
    for name in ("cuda", "glibc", "linux", "archspec"):
        value = os.environ.get(f"CONDA_OVERRIDE_{name.upper()}")
        if value is not None:
            chosen[f"__{name}"] = value.strip()
    return chosen


def _read_file(packages: CondaPackages, context: ResolveContext) -> CondaEnvironmentFile:
    name = packages.env_file
    try:
        with ProjectTree(context.project) as tree:
            text = tree.read_text(context.project / name, "utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"cannot read {name}: {error}", span=packages.span) from error
    return parse_environment_file(text, name)


def _find_span(declared: Iterable[CondaPackages], texts: Iterable[str]) -> Span | None:
    """Return the line that names a package of the message, or else the first one."""
    located = [item for item in declared if item.span.line]
    message = "\n".join(texts)
    for item in located:
        if any(name in message for name in item.names):
            return item.span
    return located[0].span if located else None
