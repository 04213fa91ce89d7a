"""Images of this machine: the list, one image by its layers, and how two images differ."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import Callable, Hashable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TypeVar

from danlu.environments.manage import EnvironmentView, environment_image_tag, list_environment_views
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
from danlu.ui.components import image_path, render_age, render_command, render_paging
from danlu.ui.html import Html, element, join_html, render_table
from danlu.ui.types import PageContent, PageRequest, Site
from danlu.util.danlu_program import LOCAL_CONTEXT
from danlu.util.human import format_size, pluralize, shorten_digest

Result = TypeVar("Result")

_ROWS, _MAX_SHARED, _MAX_SUGGESTIONS = 100, 3, 50
_AGE_SECONDS = 60


async def _read_store(site: Site, read: Callable[[Store], Result]) -> Result:
    """Return what ``read`` returns; raises :class:`UsageError` if there is no store yet."""
    place = site.settings.paths.store
    if not place.is_dir():
        raise UsageError("no images", hint="build one with `danlu build`")

    def open_store() -> Result:
        with Store.open(place) as store:
            return read(store)

    return await asyncio.to_thread(open_store)


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


class ImagesPage(_StorePage):
    """All images: those with a name first."""

    path = "/images"
    menu = "Images"

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return the table."""
        query = request.query
        wanted = query.get("q", "").lower()
        start = int(query["start"]) if query.get("start", "").isdecimal() else 0
        users = _list_users(site)

        def read(store: Store) -> tuple[list[Html], int]:
            found = [
                image
                for image in sorted(store.images(), key=_rank_names)
                if any(wanted in text for text in (image.digest, *map(str.lower, image.names)))
            ]
            now = datetime.now(UTC)
            rows = [
                _render_image_row(summarize_image(store, image), users, now)
                for image in found[start : start + _ROWS]
            ]
            return rows, len(found)

        place = site.settings.paths.store
        rows, total = await _read_store(site, read) if place.is_dir() else ([], 0)
        head = ("Names", "Image", "Size", "Layers", "Created", "From", "Used by")
        table = render_table(head, rows, caption="Images")
        field = element("input", type="search", name="q", value=query.get("q", ""))
        form = element(
            "form",
            element("h1", "Images"),
            element("label", "Name or digest ", field),
            role="search",
            class_="filters",
            data_filter=True,
        )
        hint = "No image matches." if wanted else "No images yet; danlu build builds one."
        parts = {
            "filters": join_html((form, _render_place(site))),
            "table": table if rows else element("p", hint, class_="dim"),
            "paging": render_paging(
                "/images", query, (start, _ROWS, total), "image", ("Newer", "Older")
            ),
        }
        return PageContent("Images", parts)


class ImagePage(_StorePage):
    """One image."""

    path = "/images/{image}"

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return its facts, its layers by size, and the form to compare it."""

        def read(store: Store) -> PageContent:
            image = find_image(store, request.variables["image"])
            others = [other for other in store.images() if other.digest != image.digest]
            layers = sorted(list_layers(store, image), key=lambda layer: -layer.size)
            title = ", ".join(image.names) or shorten_digest(image.digest)
            parts = {
                "head": element("h1", title),
                "facts": _render_facts(store, image, layers, others, _list_users(site)),
                "compare": _render_comparison(image, others),
                "layers": _render_layers(layers, others),
            }
            return PageContent(title, parts)

        return await _read_store(site, read)


class ImageDiffPage(_StorePage):
    """How two images differ: ``?old=NAME&new=NAME``."""

    path = "/image-diff"

    async def load(self, site: Site, request: PageRequest) -> PageContent:
        """Return the layers and settings in which they differ."""
        old, new = request.query.get("old", ""), request.query.get("new", "")

        def read(store: Store) -> PageContent:
            images = find_image(store, old), find_image(store, new)
            result = compare_images(store, *images)
            return PageContent("Difference of images", _render_diff(images, result))

        return await _read_store(site, read)


def _rank_names(image: StoredImage) -> int:
    """Return the rank of an image: with a name, with that of an environment, without one."""
    own = environment_image_tag("").partition(":")[0]
    return 2 if not image.names else int(all(name.startswith(own) for name in image.names))


def _list_users(site: Site) -> Mapping[str, Sequence[str]]:
    """Return the environments of each image."""
    users: dict[str, list[str]] = {}
    for view in list_environment_views(site.settings.paths):
        if isinstance(view, EnvironmentView):
            users.setdefault(view.spec.image, []).append(view.name)
    return users


def _render_place(site: Site) -> Html:
    if site.where == LOCAL_CONTEXT:
        return Html()
    text = f"Images are built on this machine; those in the registry of {site.where} are not shown."
    return element("p", text, class_="dim")


def _render_image_row(
    fields: Mapping[str, object], users: Mapping[str, Sequence[str]], now: datetime
) -> Html:
    digest, names = str(fields["digest"]), fields["names"]
    assert isinstance(names, list)
    created = datetime.fromtimestamp(float(str(fields["created"])), UTC)
    return element(
        "tr",
        element("th", [element("div", name) for name in names] or "–", scope="row"),
        element("td", _render_image_link(digest), class_="number"),
        element("td", format_size(int(str(fields["size"]))), class_="number"),
        element("td", fields["layers"], class_="number"),
        element("td", render_age(created, now)),
        element("td", fields["source"], class_="reason"),
        element("td", ", ".join(users.get(digest, ()))),
        data_key=digest,
    )


def _render_image_link(digest: str, text: str = "") -> Html:
    return element("a", text or shorten_digest(digest), href=image_path(digest))


# -- one image ------------------------------------------------------------------------------------


def _render_facts(
    store: Store,
    image: StoredImage,
    layers: Sequence[ImageLayer],
    others: Sequence[StoredImage],
    users: Mapping[str, Sequence[str]],
) -> Html:
    config, fields = parse_image_config(image), summarize_image(store, image)
    process = config.config
    shared = {diff_id for other in others for diff_id in other.layers}
    own = sum(max(0, layer.size) for layer in layers if layer.diff_id not in shared)
    facts = {
        "image": image.digest,
        "platform": f"{config.os}/{config.architecture}",
        "size": f"{format_size(fields['size'])} in {pluralize(len(layers), 'layer')},"
        f" {format_size(own)} in no other image",
        "from": fields["source"],
        "environments": ", ".join(users.get(image.digest, ())),
        "user": process.user if process else "",
        "command": shlex.join([*(process.entrypoint or ()), *(process.cmd or ())])
        if process
        else "",
    }
    rows = [(element("dt", name), element("dd", value)) for name, value in facts.items() if value]
    return element("dl", rows)


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


def _render_layers(layers: Sequence[ImageLayer], others: Sequence[StoredImage]) -> Html:
    sharing: dict[str, list[StoredImage]] = {}
    for other in others:
        for diff_id in other.layers:
            sharing.setdefault(diff_id, []).append(other)
    largest = max((layer.size for layer in layers), default=0)
    rows = [
        element(
            "tr",
            element("td", shorten_digest(layer.diff_id), class_="number"),
            element("td", _render_size(layer, largest), class_="number"),
            element("td", _render_sharing(sharing.get(layer.diff_id, ()))),
            element("td", " ".join(layer.created_by.split()), class_="reason"),
        )
        for layer in layers
    ]
    head = ("Layer", "Size", "Shared with", "Created by")
    return render_table(head, rows, caption="Layers by size")


def _render_size(layer: ImageLayer, largest: int) -> Html:
    if layer.size < 0:
        return element("span", "missing", class_="failure")
    text = format_size(layer.size)
    bar = element("progress", text, value=layer.size, max=max(1, largest), aria_label=text)
    return element("span", bar, f" {text}")


def _render_sharing(images: Sequence[StoredImage]) -> Html:
    named = sorted(images, key=lambda image: not image.names)
    links = [
        element("div", _render_image_link(image.digest, ", ".join(image.names)))
        for image in named[:_MAX_SHARED]
    ]
    more = len(named) - len(links)
    return join_html((links, element("div", f"and {more} more", class_="dim") if more > 0 else ""))


# -- difference -----------------------------------------------------------------------------------


def _render_diff(images: Sequence[StoredImage], diff: ImageDiff) -> Mapping[str, Html]:
    old, new = images
    links = [_render_image_link(image.digest, ", ".join(image.names)) for image in images]
    same = "; the images are identical" if diff.same else ""
    reordered = "; these are in a different order" if diff.reordered else ""
    layers = [("−", "only in the first", layer) for layer in diff.removed]
    layers += [("+", "only in the second", layer) for layer in diff.added]
    layer_rows = [
        element(
            "tr",
            element("td", mark, title=title, aria_label=title),
            element("td", shorten_digest(layer.diff_id), class_="number"),
            element("td", format_size(layer.size) if layer.size >= 0 else "missing"),
            element("td", " ".join(layer.created_by.split()), class_="reason"),
        )
        for mark, title, layer in layers
    ]
    setting_rows = [
        element("tr", element("th", name, scope="row"), element("td", before), element("td", after))
        for name, before, after in diff.settings
    ]
    command = f"danlu image diff {shorten_digest(old.digest)} {shorten_digest(new.digest)} --files"
    common = f"{pluralize(diff.common, 'layer')} in common{reordered}{same}."
    marks = " − is only in the first image, + only in the second." if layers else ""
    return {
        "head": join_html((element("h1", "Difference"), element("p", links[0], " → ", links[1]))),
        "common": element("p", common, marks),
        "layers": render_table(("", "Layer", "Size", "Created by"), layer_rows, caption="Layers")
        if layer_rows
        else Html(),
        "settings": render_table(("Setting", "Before", "After"), setting_rows, caption="Settings")
        if setting_rows
        else Html(),
        "files": join_html(
            (element("p", "Files that differ are listed by:"), render_command(command))
        ),
    }
