"""Unpack wheels, each into a separate layer, all missing ones with a single call to uv.

uv verifies an archive against the lock when it unpacks it into its cache. Later, the files of that
cache are compared with the verified contents, and fetched again without the cache if they differ:
a power failure or an edit in place may have changed them.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import anyio
from msgspec.structs import replace

from danlu.builder.embedded.context import LAYER_FORMAT, OpContext, TransferReport
from danlu.environment.package_names import normalize_name
from danlu.errors import OutsideError
from danlu.graph.ops import WHEEL_TIME, InstallScheme, Wheel
from danlu.graph.types import digest_of, op_fields
from danlu.oci.archive import limit_expansion
from danlu.oci.tar import NormalizeOptions, write_layer
from danlu.sources.http import fetch
from danlu.sources.pypi.dist_info import InvalidWheel
from danlu.sources.pypi.indexes import IndexSettings
from danlu.sources.pypi.simple_index import fetch_file
from danlu.sources.pypi.unpack_wheels import UnpackedWheel, unpack_wheels
from danlu.sources.pypi.uv import Uv
from danlu.sources.pypi.variant_labels import split_variant_label
from danlu.sources.pypi.verification import WheelContents, WheelNoteCache
from danlu.store import Layer
from danlu.util.exception_groups import unwrap_group
from danlu.util.human import format_size
from danlu.util.safe_paths import ProjectTree

_NORMALISE = NormalizeOptions(mtime=WHEEL_TIME, uid=0, gid=0)

#: Layers to hash at once. Hashing releases the GIL, walking trees does not.
_THREADS = 2


class OversizedWheel(OutsideError):
    """A wheel that contains far more than its size suggests; ``name`` is the package."""

    def __init__(self, wheel: Wheel, size: int, unpacked: int) -> None:
        super().__init__(
            f"the wheel of {wheel.name} is too large: {wheel.file} ({format_size(size)}) unpacks to"
            f" {format_size(unpacked)}",
            hint="an archive may unpack to 1 GiB, or to 200 times its size if that is more: use"
            " another version, or unpack the data in a run() step",
        )
        self.name = wheel.name


async def execute(op: Wheel, context: OpContext) -> list[Layer]:
    """Return the layer of a wheel; a built one is its input's artifact ``wheel``."""
    return (await execute_all([op], context, [context.transfer]))[0]


async def execute_all(
    ops: Sequence[Wheel], context: OpContext, transfers: Sequence[TransferReport]
) -> list[list[Layer]]:
    """Return the layer of each wheel, in the order of ``ops``; ``transfers`` are their reports.

    Raises :class:`OutsideError` naming a file that is no longer available, :class:`ChecksumError`
    if one has changed, :class:`ResolveError` if two have a path with different bytes.
    """
    by_name = {normalize_name(op.name): report for op, report in zip(ops, transfers, strict=True)}

    def report_download(name: str, current: int, total: int) -> None:
        if (report := by_name.get(normalize_name(name))) is not None:
            report(current, total)

    uv = Uv(
        context.paths.cache / "uv",
        context.request.project,
        context.indexes or IndexSettings(),
        offline=context.request.offline,
        report_download=report_download,
    )
    groups: dict[InstallScheme, list[int]] = {}
    for number, op in enumerate(ops):
        groups.setdefault(op.scheme, []).append(number)
    layers: dict[int, Layer] = {}
    for numbers in groups.values():
        with context.store.staging() as workspace:
            prepared = [await _prepare_wheel(ops[number], uv, context) for number in numbers]
            files = {op.sha256: path for op, path in prepared if path is not None}
            wheels = [op for op, _ in prepared]
            made = await _make_layers(uv, wheels, files, workspace, context)
        layers.update(zip(numbers, made, strict=True))
    return [[layers[number]] for number in range(len(ops))]


async def _make_layers(
    uv: Uv, wheels: list[Wheel], files: Mapping[str, Path], workspace: Path, context: OpContext
) -> list[Layer]:
    """Make the layers of ``wheels``, all of one scheme, from uv's cache if that is intact."""
    pending = list(wheels)
    doubts: dict[Wheel, str] = {}
    layers: dict[Wheel, Layer] = {}
    while pending:
        place = workspace / f"cached-{len(doubts)}"
        place.mkdir()
        try:
            unpacked = await unpack_wheels(
                uv, pending, workspace=place, files=files, ahead=context.prefetched
            )
        except InvalidWheel as error:
            refused = [wheel for wheel in pending if normalize_name(wheel.name) == error.name]
            if not refused:
                raise
            doubts |= dict.fromkeys(refused, "")
            pending = [wheel for wheel in pending if wheel not in refused]
            continue
        made = await _commit_all(unpacked, uv, files, context)
        layers = {wheel: layer for wheel, layer in made.items() if isinstance(layer, Layer)}
        doubts |= {wheel: doubt for wheel, doubt in made.items() if isinstance(doubt, str)}
        break
    if doubts:
        layers |= await _fetch_again(uv, doubts, files, workspace, context)
    return [layers[wheel] for wheel in wheels]


async def _fetch_again(
    uv: Uv,
    doubts: Mapping[Wheel, str],
    files: Mapping[str, Path],
    workspace: Path,
    context: OpContext,
) -> dict[Wheel, Layer]:
    """Make the layers of wheels whose copies in uv's cache are in doubt, without that cache.

    ``doubts`` are the wheels with the contents of those copies, empty if damaged. Asking uv to
    refresh is not enough: if a server answers "not modified", uv uses its copy.
    """
    wheels = list(doubts)
    names = [f"{wheel.name} {wheel.version}" for wheel in wheels]
    if context.request.offline:
        raise OutsideError(
            f"the package cache's copy of {', '.join(names)} is damaged or cannot be verified,"
            " and --offline forbids fetching it again",
            hint="build once without --offline",
        )
    for name, contents in zip(names, doubts.values(), strict=True):
        state = "cannot be verified" if contents else "is damaged"
        context.log(f"the package cache's copy of {name} {state}; fetching it again")
    past_cache = replace(uv, cache=workspace / "fresh-cache")
    place = workspace / "fresh"
    place.mkdir()
    unpacked = await unpack_wheels(past_cache, wheels, workspace=place, files=files)
    made = await _commit_all(unpacked, uv, files, context, fresh=True)
    notes = WheelNoteCache(uv.cache)
    await uv.clean_cache(
        wheel.name for wheel in wheels if notes.read(wheel.sha256).contents != doubts[wheel]
    )
    return {wheel: layer for wheel, layer in made.items() if isinstance(layer, Layer)}


async def _commit_all(
    unpacked: Sequence[UnpackedWheel],
    uv: Uv,
    files: Mapping[str, Path],
    context: OpContext,
    *,
    fresh: bool = False,
) -> dict[Wheel, Layer | str]:
    """Commit each wheel's layer; see :func:`_commit_layer`."""
    made: dict[Wheel, Layer | str] = {}
    limit = anyio.Semaphore(_THREADS)
    notes = WheelNoteCache(uv.cache)

    async def commit_one(item: UnpackedWheel) -> None:
        file = files.get(item.wheel.sha256)
        size = file.stat().st_size if file else context.request.sizes.get(item.wheel.sha256, 0)
        async with limit:
            made[item.wheel] = await context.run_sync(
                _commit_layer, item, size, notes, context, fresh=fresh
            )

    # The largest first, so that none runs alone at the end.
    order = sorted(range(len(unpacked)), key=lambda n: -len(unpacked[n].distribution.rows))
    try:
        async with anyio.create_task_group() as group:
            for number in order:
                group.start_soon(commit_one, unpacked[number])
    except BaseExceptionGroup as failures:
        error = unwrap_group(failures)
        if isinstance(error, OversizedWheel):
            await uv.clean_cache([error.name])
        raise error from failures
    return made


def _commit_layer(
    item: UnpackedWheel, size: int, notes: WheelNoteCache, context: OpContext, *, fresh: bool
) -> Layer | str:
    """Commit a wheel's layer, unless its files in uv's cache are in doubt.

    In that case return the digest of its contents, empty if they differ from those that were
    verified. ``fresh`` means that uv unpacked and verified the wheel just now; ``size`` is that of
    its file, 0 if unknown. Raises :class:`InvalidWheel` if a fresh wheel does not match its own
    RECORD, :class:`OversizedWheel` for a decompression bomb.
    """
    wheel = item.wheel
    how = digest_of(["wheel", LAYER_FORMAT, op_fields(wheel)])
    note = notes.read(wheel.sha256)
    try:
        # The diff ID of a known layer proves every byte; otherwise every file is compared.
        if fresh or how not in note.layers:
            _reject_oversized_wheel(item, size)
            contents = item.examine()
            if fresh:
                _reject_wrong_contents(wheel, contents)
                note = replace(note, layers={})
            elif contents.mismatched or note.contents not in ("", contents.digest):
                return ""
            elif contents.unverified and not note.contents:
                # Without a note (the build was killed) RECORD must cover all files.
                return contents.digest
            note = replace(note, contents=contents.digest)
        tree = item.finish()
    except InvalidWheel:
        if fresh:
            raise
        return ""
    summary = write_layer(tree, None, normalise=_NORMALISE)
    if note.layers.get(how, summary.diff_id) != summary.diff_id:
        return ""
    made_by = f"{wheel.name} {wheel.version}"
    layer = context.store.commit_layer(tree, summary, created_by=made_by, normalise=_NORMALISE)
    if how not in note.layers:
        notes.write(wheel.sha256, replace(note, layers={**note.layers, how: summary.diff_id}))
    return layer


def _reject_oversized_wheel(item: UnpackedWheel, size: int) -> None:
    """Raise :class:`OversizedWheel` if the wheel expands more than any archive may."""
    unpacked = sum(
        os.lstat(os.path.join(directory, name)).st_size
        for directory, _, names in os.walk(item.tree)
        for name in names
    )
    if size and unpacked > limit_expansion(size):
        raise OversizedWheel(item.wheel, size, unpacked)


def _reject_wrong_contents(wheel: Wheel, contents: WheelContents) -> None:
    if contents.mismatched:
        raise InvalidWheel(
            wheel.name,
            f"files in {wheel.file} do not match its RECORD",
            hint=f"report it to the maintainers of {wheel.name}; use another version,"
            f" or build it from source (--no-binary {wheel.name} in a requirements file)",
            details=contents.mismatched[:8],
        )


async def _prepare_wheel(op: Wheel, uv: Uv, context: OpContext) -> tuple[Wheel, Path | None]:
    """Return the wheel with its hash, and its file unless it comes from an index."""
    if op.source.kind == "index":
        plain, label = split_variant_label(op.file)
        if not label:
            return op, None
        # uv would choose by this machine's processor, and refuses the name.
        fetched = await fetch_file(
            uv,
            op.name,
            op.file,
            op.sha256.removeprefix("sha256:"),
            cache=context.paths.cache / "http",
        )
        place = context.paths.cache / "wheels" / fetched.sha256
        return op, _copy_under_name(fetched.path, plain, place)
    if op.source.kind == "local":
        with ProjectTree(context.request.project) as tree:
            real = tree.real_path(op.source.location)
        if real is None or not (context.request.project / real).is_file():
            raise OutsideError(f"the wheel {op.source.location} no longer exists in the project")
        return op, context.request.project / real
    if op.source.kind == "url":
        cache = context.paths.cache
        url = context.with_credentials(op.source.location)
        fetched = await fetch(url, op.sha256, cache=cache / "http", offline=context.request.offline)
        return op, _copy_under_name(fetched.path, op.file, cache / "wheels" / fetched.sha256)
    path = context.inputs[0].artifacts["wheel"]
    version = op.version or path.name.split("-")[1]
    return replace(op, file=path.name, version=version, sha256=path.parent.name), path


def _copy_under_name(path: Path, name: str, directory: Path) -> Path:
    """Return a copy of ``path`` with the wheel's file name, from which uv reads its tags."""
    target = directory / name
    if not target.exists():
        directory.mkdir(parents=True, exist_ok=True)
        partial = directory / f".{os.getpid()}-{name}"
        shutil.copyfile(path, partial)
        os.replace(partial, target)
    return target
