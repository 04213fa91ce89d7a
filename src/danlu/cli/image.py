"""``danlu image``: list, inspect, tag, remove and transfer images."""

from __future__ import annotations

import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import msgspec

from danlu.cli.groups import group
from danlu.cli.options import (
    ByteSize,
    bytecode_option,
    compression_option,
    format_option,
    image_argument,
    on_option,
    progress_option,
    verbosity_options,
)
from danlu.cli.output import print_json, print_table
from danlu.cli.session import Session, current_session
from danlu.cli.terminal import Terminal
from danlu.errors import DanluError, MachineError, StoreError
from danlu.graph.progress import Event, Finished, Message, Started
from danlu.image.diff import FileChange, compare_files, compare_images
from danlu.image.manage import (
    ImageLayer,
    find_image,
    list_layers,
    normalize_name,
    parse_image_config,
    prune_images,
    remove_images,
    summarize_image,
    tag_image,
)
from danlu.image.platforms import find_other_platforms
from danlu.sandbox import userns
from danlu.store import Store, StoredImage
from danlu.util.human import (
    format_age,
    format_size,
    parse_size,
    pluralize,
    shorten_digest,
)
from danlu.util.sanitize import strip_control_sequences

# Importing what only some commands need would slow down `image ls`: registries (aiohttp),
# archives, comparing trees, checking the store.

_EXIT_DAMAGED = 3
_UNLIMITED = 1 << 62
_DIFF_MARKS = {"added": ("+", "green"), "removed": ("-", "red"), "changed": ("~", "yellow")}

command = group(
    "image",
    help="""List, inspect, move and remove images.

    IMAGE is a name, a digest, or the beginning of a digest.""",
)


@contextmanager
def _open_store(
    run: Session, *, as_root: bool = False, frees_space: bool = False
) -> Iterator[Store]:
    """Open the user's store; ``frees_space`` is as in :meth:`Store.open`.

    ``as_root`` is needed to write, fully read or remove the trees of layers: files keep their
    owners there, so an unprivileged process first becomes root of a user namespace.
    """
    if as_root:
        userns.enter(run.paths)
    with Store.open(run.paths.store, frees_space=frees_space) as store:
        yield store


@contextmanager
def _show_progress(run: Session, kind: str, name: str) -> Iterator[Callable[[Event], None]]:
    """Show ``name`` as the only running step; yield the callback for its events."""
    progress = run.start_progress(kind, title="loading")
    started = time.monotonic()
    progress(Started(name, name, "", 0.0))
    try:
        yield progress
        seconds = time.monotonic() - started
        progress(Finished(name, name, "", seconds, seconds, cached=False))
    finally:
        run.stop_progress()


# -- inspect


@command.subcommand("ls", section="Inspect")
@click.option("-a", "--all", "everything", is_flag=True, help="List every untagged build.")
@format_option()
@on_option
@verbosity_options
def ls(everything: bool, form: str) -> None:
    """List local images.

    Untagged builds of the same build file are shown as one row: the newest, and how many others
    there are. SIZE counts every layer of an image; images share layers. With -q only digests.
    """
    run = current_session()
    with _open_store(run) as store:
        images = [summarize_image(store, image) for image in store.images()]
    if form == "json":
        print_json(images, run.terminal)
    elif run.quiet:
        for image in images:
            run.terminal.write_stdout(image["digest"])
    elif not images:
        run.terminal.info("no images; build one with `danlu build`")
    else:
        rows = list(list_rows(images, everything=everything))
        print_table(("NAME", "IMAGE", "SIZE", "CREATED", "FROM"), rows, run.terminal, right=(2,))


def list_rows(images: Sequence[dict[str, Any]], *, everything: bool) -> Iterator[tuple[str, ...]]:
    """Yield a row for each name, and one for all untagged builds of a build file."""
    untagged: dict[str, list[dict[str, Any]]] = {}
    for image in images:
        for name in image["names"]:
            yield _image_row(name, image)
        if not image["names"]:
            # What was not built from a file (a loaded archive) has nothing in common.
            key = image["source"] if image["source"] and not everything else image["digest"]
            untagged.setdefault(key, []).append(image)
    for builds in untagged.values():
        newest = max(builds, key=lambda image: float(image["created"]))
        others = len(builds) - 1
        yield _image_row(f"- (and {others} older)" if others else "-", newest)


def _image_row(name: str, image: dict[str, Any]) -> tuple[str, ...]:
    return (
        name,
        shorten_digest(image["digest"]),
        format_size(image["size"]),
        format_age(time.time() - image["created"]),
        image["source"],
    )


@command.subcommand("show", section="Inspect")
@image_argument()
@format_option()
@on_option
@verbosity_options
def show(image: str, form: str) -> None:
    """Show an image: names, configuration, layers."""
    run = current_session()
    with _open_store(run) as store:
        stored = find_image(store, image)
        layers = list_layers(store, stored)
        fields: dict[str, Any] = summarize_image(store, stored)
    fields |= {
        "metadata": dict(stored.metadata),
        "config": msgspec.to_builtins(parse_image_config(stored)),
        "layers": [msgspec.to_builtins(layer) for layer in layers],
    }
    if form == "json":
        print_json(fields, run.terminal)
    else:
        _print_image(fields, run.terminal)


def _print_image(fields: dict[str, Any], terminal: Terminal) -> None:
    config = fields["config"]
    process = config.get("config") or {}
    rows = {
        "image": fields["digest"],
        "names": ", ".join(fields["names"]) or "-",
        "platform": f"{config['os']}/{config['architecture']}",
        "size": f"{format_size(fields['size'])} in {len(fields['layers'])} layers",
        "created": format_age(time.time() - fields["created"]),
        "from": fields["source"],
        "user": process.get("User", ""),
        "directory": process.get("WorkingDir", ""),
        "entrypoint": shlex.join(process.get("Entrypoint") or ()),
        "command": shlex.join(process.get("Cmd") or ()),
        "ports": ", ".join(process.get("ExposedPorts") or ()),
    }
    for name, value in rows.items():
        if value:
            label = terminal.style_stdout(name.ljust(11), "bold")
            terminal.write_stdout(f"{label} {strip_control_sequences(value)}")
    for name in ("Env", "Labels"):
        values = process.get(name) or ()
        lines = [f"{k}={v}" for k, v in values.items()] if isinstance(values, dict) else values
        for index, line in enumerate(lines):
            title = name.lower() if index == 0 else ""
            label = terminal.style_stdout(title.ljust(11), "bold")
            terminal.write_stdout(f"{label} {strip_control_sequences(line)}")


@command.subcommand("history", section="Inspect")
@image_argument()
@format_option()
@on_option
@verbosity_options
def history(image: str, form: str) -> None:
    """Show how each layer of an image was created.

    The topmost layer comes first.
    """
    run = current_session()
    with _open_store(run) as store:
        layers = list_layers(store, find_image(store, image))[::-1]
    if form == "json":
        print_json([msgspec.structs.asdict(layer) for layer in layers], run.terminal)
        return
    rows = [
        (
            shorten_digest(layer.diff_id),
            format_size(layer.size) if layer.size >= 0 else "missing",
            " ".join(layer.created_by.split()),
        )
        for layer in layers
    ]
    print_table(("LAYER", "SIZE", "CREATED BY"), rows, run.terminal, right=(1,))


@command.subcommand("diff", section="Inspect")
@image_argument("old")
@image_argument("new")
@click.option("--files", is_flag=True, help="Also list every file that differs.")
@format_option()
@on_option
@verbosity_options
def diff(old: str, new: str, files: bool, form: str) -> int:
    """Compare two images; exits 1 if they differ.

    Lines with - are only in OLD, lines with + only in NEW.
    """
    run = current_session()
    terminal = run.terminal
    with _open_store(run, as_root=files) as store:
        before, after = find_image(store, old), find_image(store, new)
        result = compare_images(store, before, after)
        changes = list(compare_files(store, before, after)) if files else []
    if form == "json":
        fields: dict[str, Any] = {
            "same": result.same,
            "removed": [msgspec.structs.asdict(layer) for layer in result.removed],
            "added": [msgspec.structs.asdict(layer) for layer in result.added],
            "common": result.common,
            "settings": [{"name": n, "before": b, "after": a} for n, b, a in result.settings],
        }
        if files:
            fields["files"] = [msgspec.structs.asdict(change) for change in changes]
        print_json(fields, terminal)
        return 0 if result.same else 1
    for layer in result.removed:
        _print_difference("removed", f"layer {_format_layer(layer)}", terminal)
    for layer in result.added:
        _print_difference("added", f"layer {_format_layer(layer)}", terminal)
    for name, value_before, value_after in result.settings:
        if value_before:
            _print_difference(
                "removed", f"{name}: {strip_control_sequences(value_before)}", terminal
            )
        if value_after:
            _print_difference("added", f"{name}: {strip_control_sequences(value_after)}", terminal)
    for change in changes:
        path = strip_control_sequences(change.path)
        _print_difference(change.kind, f"{path}{_format_sizes(change)}", terminal)
    if result.reordered:
        terminal.info("the common layers are in a different order")
    identical = "; the images are identical" if result.same else ""
    terminal.info(f"{pluralize(result.common, 'layer')} in common{identical}")
    return 0 if result.same else 1


def _print_difference(kind: str, text: str, terminal: Terminal) -> None:
    mark, style = _DIFF_MARKS[kind]
    terminal.write_stdout(terminal.style_stdout(f"{mark} {text}", style))


def _format_layer(layer: ImageLayer) -> str:
    created_by = strip_control_sequences(" ".join(layer.created_by.split()))
    return f"{shorten_digest(layer.diff_id)}  {format_size(max(0, layer.size))}  {created_by}"


def _format_sizes(change: FileChange) -> str:
    if change.kind == "changed":
        return f"  {format_size(change.before)} -> {format_size(change.after)}"
    size = change.before or change.after
    return f"  {format_size(size)}" if size else ""


# -- manage


@command.subcommand("tag", section="Manage")
@image_argument()
@click.argument("name", metavar="NAME")
@on_option
@verbosity_options
def tag(image: str, name: str) -> None:
    """Add a name to an image.

    If another image has the name, it is moved.
    """
    run = current_session()
    with _open_store(run) as store:
        added = tag_image(store, image, name)
    run.terminal.info(f"tagged {added}")


@command.subcommand("rm", section="Manage")
@image_argument("images", nargs=-1, required=True)
@on_option
@verbosity_options
def rm(images: tuple[str, ...]) -> None:
    """Remove images or their names.

    An image with several names only loses the given one; a digest removes the image with all its
    names. Run `danlu image prune` afterwards to free the space.
    """
    run = current_session()
    with _open_store(run, frees_space=True) as store:
        removed = remove_images(store, images)
    for name in removed.names:
        run.terminal.info(f"removed name {name}")
    for digest in removed.images:
        run.terminal.info(f"removed image {shorten_digest(digest)}")


@command.subcommand("prune", section="Manage")
@click.option(
    "--keep",
    type=ByteSize(),
    metavar="SIZE",
    help="Remove the least recently used data until SIZE remains (such as 20GB).",
)
@click.option("--all", "everything", is_flag=True, help="Same as --keep 0.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@format_option()
@on_option
@verbosity_options
def prune(keep: int | None, everything: bool, dry_run: bool, form: str) -> None:
    """Remove unused layers and cached downloads.

    Without options, removes what is damaged or left over, and what exceeds the setting
    store_limit. Named images and data of running builds are always kept. Downloads (packages,
    wheels, repositories) get at most a quarter of SIZE if layers need the rest.
    """
    if everything and keep is not None:
        raise click.UsageError("--all means --keep 0 and cannot be combined with --keep")
    run = current_session()
    limit = 0 if everything else keep
    if limit is None:
        configured = run.settings.config.store_limit
        limit = parse_size(configured) if configured else _UNLIMITED
    with _open_store(run, as_root=True, frees_space=True) as store:
        report = prune_images(store, run.paths, limit, dry_run=dry_run)
    if form == "json":
        print_json(msgspec.structs.asdict(report), run.terminal)
        return
    counts = {
        "image": report.images,
        "layer": report.layers,
        "blob": report.blobs,
        "download": report.downloads,
    }
    parts = [pluralize(count, noun) for noun, count in counts.items() if count]
    details = f" ({', '.join(parts)})" if parts else ""
    busy = "; kept downloads that a build is using" if report.busy else ""
    removed, kept = ("would remove", "keep") if dry_run else ("removed", "kept")
    run.terminal.info(
        f"{removed} {format_size(report.freed)}{details}, {kept} {format_size(report.kept)}{busy}"
    )


@command.subcommand("check", section="Manage")
@click.option("--repair", is_flag=True, help="Remove damaged data, so that it is rebuilt.")
@format_option()
@on_option
@verbosity_options
def check(repair: bool, form: str) -> int:
    """Verify the store's integrity.

    Reads every layer and blob and compares it with its digest. Exits with 3 if data is damaged and
    was not removed with --repair; the next build recreates what builds have made, from verified
    sources. Images that were committed, pulled or loaded are only removed if their own data is
    damaged, and must then be made again. Unreadable data is not treated as damaged: nothing is
    removed then, and the exit code is 4 if this account lacks permission, 3 if the disk failed.
    Leftovers of killed builds only take space until the next prune.
    """
    from danlu.store.index_check import check_store

    run = current_session()
    userns.enter(run.paths)
    findings = check_store(run.paths.store, repair=repair)
    if form == "json":
        print_json([msgspec.structs.asdict(finding) for finding in findings], run.terminal)
    else:
        for finding in findings:
            state = " (removed)" if finding.repaired else ""
            detail = f": {finding.detail}" if finding.detail else ""
            text = strip_control_sequences(f"{finding.subject}{detail}")
            run.terminal.write_stdout(f"{finding.kind} {text}{state}")
    if unreadable := [finding for finding in findings if finding.unreadable]:
        raise _unreadable_error(unreadable, repair=repair)
    remaining = [finding for finding in findings if not finding.repaired and not finding.harmless]
    if remaining:
        run.terminal.info(
            f"{pluralize(len(remaining), 'problem')} found; --repair removes damaged data"
        )
        return _EXIT_DAMAGED
    if not any(finding.repaired for finding in findings):
        run.terminal.info("no damage found")
    elif all(finding.harmless for finding in findings):
        run.terminal.info("removed leftovers; no damage found")
    else:
        run.terminal.info("removed damaged data; the next build recreates what builds have made")
        if any(finding.kind.startswith(("image-", "index-")) for finding in findings):
            run.terminal.info(
                "note: images of `danlu commit --tag`, `image pull` and `image load` that are gone"
                " must be committed, pulled or loaded again"
            )
    return 0


def _unreadable_error(findings: Sequence[Any], *, repair: bool) -> DanluError:
    """Return the error for data that could not be read, and so is not known to be damaged."""
    first = findings[0]
    kind = "layer" if first.kind == "layer-unreadable" else "blob"
    kept = "; nothing was removed" if repair else ""
    message = f"cannot check {pluralize(len(findings), kind)}: {first.detail}{kept}"
    if not first.denied:
        return StoreError(
            message,
            hint="the disk or its file system may be failing: check the kernel log (dmesg)",
        )
    try:
        userns.require_ids("reading the store's layers")
    except MachineError as error:
        return MachineError(message, hint=error.hint, details=(error.message, *error.details))
    return MachineError(
        message, hint="make all files of the store owned by the account that builds"
    )


# -- transfer


@command.subcommand("push", section="Transfer")
@image_argument()
@click.argument("destinations", nargs=-1, metavar="[REF]...")
@bytecode_option
@compression_option(default="gzip", help="Layer compression; zstd needs Docker 23 or newer.")
@click.option(
    "--create-repository", is_flag=True, help="Create the repository in Amazon ECR if missing."
)
@progress_option
@on_option
@verbosity_options
def push(
    image: str,
    destinations: tuple[str, ...],
    bytecode: bool,
    compression: str,
    create_repository: bool,
    progress: str,
) -> None:
    """Push an image to a registry.

    Pushes to each REF, or to IMAGE's own name if none is given. Layers that the registry has are
    not sent again, also after an interruption. The manifest's digest is written to stdout.
    """
    from danlu.image.export import push_names

    run = current_session()
    names = [normalize_name(destination) for destination in destinations or (image,)]
    summaries: dict[str, str] = {}
    with _open_store(run, as_root=True) as store, store.lease():
        stored, others = find_image(store, image), find_other_platforms(store, image)
        if bytecode:
            stored, others = _add_bytecode(run, store, stored, others)
        note = _describe_bytecode(store, stored)
        try:
            digest = push_names(
                store,
                stored,
                names,
                settings=run.settings,
                compression=compression,
                progress=run.start_progress(progress, title="pushing"),
                others=others,
                create_repository=create_repository,
                on_pushed=lambda name, summary: summaries.update({name: summary.format("sent")}),
            )
        finally:
            run.stop_progress()
    run.terminal.write_stdout(digest)
    for name, summary in summaries.items():
        run.terminal.info(f"pushed {name}: {summary}")
    if note:
        run.terminal.info(note)


def _add_bytecode(
    run: Session, store: Store, image: StoredImage, others: Sequence[StoredImage]
) -> tuple[StoredImage, tuple[StoredImage, ...]]:
    from danlu.project.bytecode import add_bytecode

    added = tuple(add_bytecode(store, each, run.settings) for each in (image, *others))
    return added[0], added[1:]


def _describe_bytecode(store: Store, image: StoredImage) -> str:
    from danlu.project.bytecode import BYTECODE_NOTE, lacks_bytecode

    return BYTECODE_NOTE if lacks_bytecode(store, image) else ""


@command.subcommand("pull", section="Transfer")
@click.argument("reference", metavar="REF")
@click.option(
    "--platform", metavar="OS/ARCH", default="", help="Platform [default: this machine's]."
)
@progress_option
@on_option
@verbosity_options
def pull(reference: str, platform: str, progress: str) -> None:
    """Pull an image from a registry.

    All content is verified by digest. An interrupted pull continues where it stopped. The image's
    digest is written to stdout.
    """
    from danlu.image.pull import pull_image

    run = current_session()
    with _open_store(run, as_root=True) as store:
        try:
            image, summary = pull_image(
                store,
                reference,
                platform=platform,
                settings=run.settings,
                progress=run.start_progress(progress, title="pulling"),
            )
        finally:
            run.stop_progress()
    run.terminal.write_stdout(image.digest)
    name = ", ".join(image.names) or reference
    run.terminal.info(f"pulled {name}: {summary.format('downloaded')}")


@command.subcommand("save", section="Transfer")
@image_argument()
@click.option(
    "-o",
    "--output",
    required=True,
    metavar="PATH|type=TYPE,dest=PATH",
    help="type=docker (archive) or oci (layout) [default: by suffix .tar].",
)
@bytecode_option
@compression_option(default="zstd", help="Layer compression of a layout.")
@on_option
@verbosity_options
def save(image: str, output: str, bytecode: bool, compression: str) -> None:
    """Write an image to a file or directory.

    `docker load` reads an archive of type=docker; type=oci is a directory with an OCI layout.
    """
    from danlu.image.export import write_output

    run = current_session()
    if "dest=" not in output:
        kind = "docker" if output.endswith(".tar") else "oci"
        output = f"type={kind},dest={output}"
    with _open_store(run, as_root=True) as store, store.lease():
        stored = find_image(store, image)
        # The archive holds the platform; `demo:1@linux/arm64` is a name of this store only.
        named = [image] if image in stored.names else stored.names
        names = sorted({name.partition("@")[0] for name in named})
        others = find_other_platforms(store, image)
        if bytecode:
            stored, others = _add_bytecode(run, store, stored, others)
        note = _describe_bytecode(store, stored)
        digest, path = write_output(
            store, stored, output, names=names, compression=compression, others=others
        )
    run.terminal.info(f"wrote {path}")
    if digest:
        run.terminal.info(f"manifest {digest}")
    if note:
        run.terminal.info(note)


@command.subcommand("load", section="Transfer")
@click.argument("path", type=click.Path(path_type=Path))
@click.option(
    "-t", "--tag", "tags", multiple=True, metavar="REF", help="Name the image. Repeatable."
)
@progress_option
@on_option
@verbosity_options
def load(path: Path, tags: tuple[str, ...], progress: str) -> None:
    """Load images from a file or directory.

    PATH is a `docker save` archive (- for stdin) or the directory of an OCI layout.
    """
    from danlu.image.load import load_images, spool_stream

    run = current_session()
    names = [normalize_name(tag) for tag in tags]
    with (
        _open_store(run, as_root=True) as store,
        tempfile.TemporaryDirectory(dir=store.root) as scratch,
        _show_progress(run, progress, f"load {path}") as report,
    ):
        # Archives are read in any order, which a pipe does not allow.
        source = spool_stream(sys.stdin.buffer, Path(scratch)) if str(path) == "-" else path

        def report_layer(number: int, count: int) -> None:
            report(Message(f"layer {number} of {count}", 0.0))

        images = load_images(store, source, names=names, progress=report_layer)
    for image in images:
        digest = shorten_digest(image.digest)
        run.terminal.info(f"loaded {digest} {', '.join(image.names)}".rstrip())
        if run.quiet:
            run.terminal.write_stdout(image.digest)
