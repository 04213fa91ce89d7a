"""Images of this machine: the list, one image by its layers, and how two images differ."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from danlu.environments.manage import (
    EnvironmentView,
    environment_image_tag,
    list_environment_views,
)
from danlu.errors import UsageError
from danlu.image.diff import ImageDiff, compare_images
from danlu.image.manage import (
    ImageLayer,
    find_image,
    list_layers,
    parse_image_config,
    summarize_image,
)
from danlu.store import Store, StoredImage
from danlu.store.index import INDEX
from danlu.ui.components import (
    image_path,
    read_start,
    render_age,
    render_command,
    render_facts,
    render_paging,
    render_reason,
)
from danlu.ui.html import Html, element, join_html, render_row, render_table
from danlu.ui.types import PageContent, PageRequest, Site
from danlu.util.danlu_program import LOCAL_CONTEXT
from danlu.util.human import format_size, pluralize, shorten_digest

_ROWS, _MAX_SHARED, _MAX_SUGGESTIONS = 100, 3, 50
_AGE_SECONDS = 60
_OWN_NAMES = environment_image_tag("").partition(":")[0]


class _StorePage:
    """A page that changes with the store."""

    menu = ""

    async def read_stamp(self, site: Site, request: PageRequest) -> Hashable:
        """Return what changes with the store's index, and with the ages."""
        index, log = (site.settings.paths.store / name for name in (INDEX, f"{INDEX}-wal"))
        # Not the time of the log: readers of the index create one, too.
        changed = index.stat().st_mtime_ns if index.exists() else 0
        written = log.stat().st_size if log.exists() else 0
        return changed, written, time.monotonic() // _AGE_SECONDS


async def _read_store(site: Site, read: Callable[[Store], PageContent]) -> PageContent:
    """Return what ``read`` returns in a thread; raises :class:`UsageError` without a store."""
    place = site.settings.paths.store
    if not place.is_dir():
        raise UsageError("no images yet", hint="build one with `danlu build`")

    def open_store() -> PageContent:
        with Store.open(place) as store:
            return read(store)

    return await asyncio.to_thread(open_store)


class ImagesPage(_StorePage):
    """All images: those with a name first."""

    path = "/images"
    menu = "Images"

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return the table."""
        if site.settings.paths.store.is_dir():
            return await _read_store(site, lambda store: _list_images(store, site, request.query))
        return _render_list(site, request.query, [], 0)


def _list_images(store: Store, site: Site, query: Mapping[str, str]) -> PageContent:
    wanted, start = query.get("q", "").lower(), read_start(query)
    found = [
        image
        for image in sorted(store.images(), key=_rank_names)
        if any(wanted in text for text in (image.digest, *map(str.lower, image.names)))
    ]
    users = _list_users(site)
    summaries = [summarize_image(store, image) for image in found[start : start + _ROWS]]
    rows = [_render_image_row(fields, users.get(fields["digest"], ())) for fields in summaries]
    return _render_list(site, query, rows, len(found))


def _rank_names(image: StoredImage) -> int:
    """Return the rank of an image: with a name, with that of an environment, without one."""
    return 2 if not image.names else int(all(name.startswith(_OWN_NAMES) for name in image.names))


def _list_users(site: Site) -> Mapping[str, Sequence[str]]:
    """Return the environments of each image."""
    users: dict[str, list[str]] = {}
    for view in list_environment_views(site.settings.paths):
        if isinstance(view, EnvironmentView):
            users.setdefault(view.spec.image, []).append(view.name)
    return users


def _render_list(
    site: Site, query: Mapping[str, str], rows: Sequence[Html], total: int
) -> PageContent:
    wanted, counts = query.get("q", ""), (read_start(query), _ROWS, total)
    field = element("input", type="search", name="q", value=wanted)
    label = element("label", "Name or digest ", field)
    note = f"Images of this machine; those in the registry of {site.where} are not shown."
    head = ("Names", "Image", "Size", "Layers", "Created", "From", "Used by")
    empty = "No image matches." if wanted else "No images yet; danlu build builds one."
    title = element("h1", "Images")
    parts = {
        "filters": element("form", title, label, class_="filters", data_filter=True),
        "place": element("p", note, class_="dim") if site.where != LOCAL_CONTEXT else Html(),
        "table": render_table(head, rows, caption="Images", empty=empty),
        "paging": render_paging("/images", query, counts, "image", ("Newer", "Older")),
    }
    return PageContent("Images", parts)


def _render_image_row(fields: Mapping[str, Any], users: Sequence[str]) -> Html:
    return render_row(
        [element("div", name) for name in fields["names"]] or "–",
        _render_image_link(fields["digest"]),
        format_size(fields["size"]),
        fields["layers"],
        render_age(datetime.fromtimestamp(fields["created"], UTC), datetime.now(UTC)),
        render_reason(fields["source"]),
        ", ".join(users),
        data_key=fields["digest"],
    )


def _render_image_link(digest: str, names: Sequence[str] = ()) -> Html:
    return element("a", ", ".join(names) or shorten_digest(digest), href=image_path(digest))


# -- one image ------------------------------------------------------------------------------------


class ImagePage(_StorePage):
    """One image: its facts, its layers by size, and the form to compare it."""

    path = "/images/{image}"

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return the parts of the page."""
        name = request.variables["image"]
        return await _read_store(site, lambda store: _show_image(store, site, name))


def _show_image(store: Store, site: Site, name: str) -> PageContent:
    image = find_image(store, name)
    layers = sorted(list_layers(store, image), key=lambda layer: -layer.size)
    others = [other for other in store.images() if other.digest != image.digest]
    sharing: dict[str, list[StoredImage]] = {}
    for other in others:
        for diff_id in other.layers:
            sharing.setdefault(diff_id, []).append(other)
    config = parse_image_config(image)
    process, fields = config.config, summarize_image(store, image)
    own = sum(max(0, layer.size) for layer in layers if layer.diff_id not in sharing)
    count = pluralize(len(layers), "layer")
    command = [*(process.entrypoint or ()), *(process.cmd or ())] if process else []
    facts = {
        "image": image.digest,
        "platform": f"{config.os}/{config.architecture}",
        "size": f"{format_size(fields['size'])} in {count}, {format_size(own)} in no other image",
        "from": fields["source"],
        "environments": ", ".join(_list_users(site).get(image.digest, ())),
        "user": process.user if process else "",
        "command": shlex.join(command),
    }
    title = ", ".join(image.names) or shorten_digest(image.digest)
    largest = max((layer.size for layer in layers), default=0)
    rows = [
        render_row(
            shorten_digest(layer.diff_id),
            _render_size(layer, largest),
            _render_sharing(sharing.get(layer.diff_id, ())),
            render_reason(" ".join(layer.created_by.split())),
        )
        for layer in layers
    ]
    head = ("Layer", "Size", "Shared with", "Created by")
    parts = {
        "head": element("h1", title),
        "facts": render_facts(facts),
        "compare": _render_comparison(image, others),
        "layers": render_table(head, rows, caption="Layers by size"),
    }
    return PageContent(title, parts)


def _render_comparison(image: StoredImage, others: Sequence[StoredImage]) -> Html:
    names = [name for other in others for name in other.names][:_MAX_SUGGESTIONS]
    field = element("input", name="new", required=True, list="images", placeholder="name or digest")
    return element(
        "form",
        element("input", type="hidden", name="old", value=image.digest),
        element("label", "Compare with ", field),
        element("datalist", [element("option", value=name) for name in names], id="images"),
        element("button", "Compare"),
        action="/image-diff",
        class_="filters",
    )


def _render_size(layer: ImageLayer, largest: int) -> Html:
    if layer.size < 0:
        return element("span", "missing", class_="failure")
    text = format_size(layer.size)
    bar = element("progress", text, value=layer.size, max=max(1, largest), aria_label=text)
    return element("span", bar, f" {text}")


def _render_sharing(images: Sequence[StoredImage]) -> Html:
    shown = sorted(images, key=_rank_names)[:_MAX_SHARED]
    links = [element("div", _render_image_link(image.digest, image.names)) for image in shown]
    more = len(images) - len(shown)
    return join_html((links, element("div", f"and {more} more", class_="dim") if more else ""))


# -- difference -----------------------------------------------------------------------------------


class ImageDiffPage(_StorePage):
    """How two images differ: ``?old=NAME&new=NAME``."""

    path = "/image-diff"

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return the layers and settings in which they differ."""
        old, new = request.query.get("old", ""), request.query.get("new", "")

        def read(store: Store) -> PageContent:
            images = find_image(store, old), find_image(store, new)
            parts = _render_diff(images, compare_images(store, *images))
            return PageContent("Difference of images", parts)

        return await _read_store(site, read)


def _render_diff(images: Sequence[StoredImage], diff: ImageDiff) -> Mapping[str, Html]:
    old, new = (_render_image_link(image.digest, image.names) for image in images)
    reordered = "; these are in a different order" if diff.reordered else ""
    same = "; the images are identical" if diff.same else ""
    common = f"{pluralize(diff.common, 'layer')} in common{reordered}{same}."
    marked = [*(("−", layer) for layer in diff.removed), *(("+", layer) for layer in diff.added)]
    marks = " − is only in the first image, + only in the second." if marked else ""
    layers = [
        render_row(
            f"{mark} {shorten_digest(layer.diff_id)}",
            format_size(layer.size) if layer.size >= 0 else "missing",
            render_reason(" ".join(layer.created_by.split())),
        )
        for mark, layer in marked
    ]
    settings = [render_row(*setting) for setting in diff.settings]
    layer_head, setting_head = ("Layer", "Size", "Created by"), ("Setting", "Before", "After")
    digests = " ".join(shorten_digest(image.digest) for image in images)
    command = render_command(f"danlu image diff {digests} --files")
    return {
        "head": join_html((element("h1", "Difference"), element("p", old, " → ", new))),
        "common": element("p", common, marks),
        "layers": render_table(layer_head, layers, caption="Layers", empty=""),
        "settings": render_table(setting_head, settings, caption="Settings", empty=""),
        "files": join_html((element("p", "Files that differ are listed by:"), command)),
    }
