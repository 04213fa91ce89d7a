"""The pages of images: the list, the layers of one, and how two differ."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from danlu.image.manage import list_layers, tag_image
from danlu.jobs.local.client import LocalJobs
from danlu.oci.image import make_image
from danlu.store import Store, StoredImage
from danlu.util.human import format_size
from tests.image.test_images import image, layer
from tests.jobs.containers.engine_rig import paths_of
from tests.ui.site import make_site, serve, wait_for_part
from tests.ui.test_environments import HOSTILE, write_environment

pytestmark = pytest.mark.anyio


@pytest.fixture
def store(home: Path) -> Iterator[Store]:
    with Store.open(paths_of(home).store) as store:
        yield store


@pytest.fixture
def two_images(store: Store) -> tuple[StoredImage, StoredImage]:
    """Two images with a small layer in common; the larger one is on top of it."""
    common = layer(store, a="1")
    return (
        image(store, common, layer(store, b="x" * 50_000), names=("demo:1",)),
        image(store, common, layer(store, c="3"), names=("demo:2",), user="ann"),
    )


async def test_list_has_names_sizes_and_users_and_follows_the_store(
    home: Path, jobs: LocalJobs, store: Store, two_images: tuple[StoredImage, StoredImage]
) -> None:
    first, _ = two_images
    environment = write_environment(home, "dev")
    spec = environment.spec_file.read_text().replace("sha256:" + "a" * 64, first.digest)
    environment.spec_file.write_text(spec)
    image(store, layer(store, d="4"))
    async with serve(make_site(home, jobs)) as client:
        _, text = await client.ask("/images")
        rows = re.findall(r"<tr data-key.*?</tr>", text)
        assert len(rows) == 3
        assert "demo" not in rows[-1]
        row = next(row for row in rows if "demo:1" in row)
        size = sum(found.size for found in list_layers(store, first))
        assert format_size(size) in row
        assert f'href="/images/{first.digest}"' in row
        assert "<td>dev</td>" in row
        tag_image(store, "demo:2", "other:3")
        await wait_for_part(client, "/images", "table", "other:3")
        _, text = await client.ask("/images?q=DEMO:2")
        assert len(re.findall("<tr data-key", text)) == 1


async def test_image_shows_its_layers_by_size_and_who_shares_them(
    home: Path, jobs: LocalJobs, two_images: tuple[StoredImage, StoredImage]
) -> None:
    first, second = two_images
    async with serve(make_site(home, jobs)) as client:
        for name in (first.digest, "demo:1"):
            status, text = await client.ask(f"/images/{name}")
            assert status == 200
        rows = re.findall(r"<tr>.*?</tr>", text)[1:]
        assert [first.layers[1][7:19] in rows[0], first.layers[0][7:19] in rows[1]] == [True] * 2
        assert f'href="/images/{second.digest}"' not in rows[0]
        assert f'href="/images/{second.digest}"' in rows[1]
        assert (await client.ask("/images/none"))[0] == 404


async def test_difference_has_the_layers_and_settings_of_the_command(
    home: Path, jobs: LocalJobs, two_images: tuple[StoredImage, StoredImage]
) -> None:
    first, second = two_images
    async with serve(make_site(home, jobs)) as client:
        _, text = await client.ask(f"/image-diff?old={first.digest}&new=demo:2")
        assert "1 layer in common" in text
        assert first.layers[1][7:19] in text
        assert second.layers[1][7:19] in text
        assert re.search(r"<th[^>]*>User</th><td></td><td>ann</td>", text)
        _, text = await client.ask("/image-diff?old=demo:1&new=demo:1")
        assert "the images are identical" in text
        assert (await client.ask("/image-diff?old=demo:1"))[0] == 404


async def test_thousand_images_are_listed_in_parts(
    home: Path, jobs: LocalJobs, store: Store
) -> None:
    common = layer(store, a="1")
    for number in range(1000):
        made = make_image([(common.diff_id, "a")], architecture="amd64", user=f"user{number}")
        store.put_image(made.config, made.diff_ids, names=(f"demo:{number}",), metadata={})
    async with serve(make_site(home, jobs)) as client:
        _, text = await client.ask("/images")
        assert len(re.findall("<tr data-key", text)) == 100
        assert "1000 images" in text
        assert len(text) < 100_000
        _, text = await client.ask(f"/images/{made.digest[7:19]}")
        assert "and 996 more" in text


async def test_hostile_images_are_shown_as_text(home: Path, jobs: LocalJobs, store: Store) -> None:
    base = layer(store, a="1")
    for user, file in ((HOSTILE, HOSTILE), ("ann", "build.envd")):
        made = make_image([(base.diff_id, HOSTILE)], architecture=HOSTILE, user=user)
        metadata = {"file": file, "function": HOSTILE}
        # Registries and archives may name images in any way.
        stored = store.put_image(
            made.config, made.diff_ids, names=(f"{user}/{HOSTILE}:1",), metadata=metadata
        )
    async with serve(make_site(home, jobs)) as client:
        old = re.findall(r'href="/images/([^"]+)"', (await client.ask("/images"))[1])
        paths = ["/images", f"/images/{stored.digest}", f"/image-diff?old={old[0]}&new={old[1]}"]
        for path in (*paths, "/images?q=%3Cimg%3E", "/images/%3Cimg%3E", "/image-diff?old=%3Cimg"):
            _, text = await client.ask(path)
            assert "<img" not in text
            assert "\x1b" not in text
            assert html.escape("<img") in text or path == "/images?q=%3Cimg%3E"


async def test_machine_without_a_store_has_no_images(home: Path, jobs: LocalJobs) -> None:
    async with serve(make_site(home, jobs, where="kubernetes")) as client:
        status, text = await client.ask("/images")
        assert (status, "No images yet" in text) == (200, True)
        assert "those in the registry of kubernetes are not shown" in text
        assert (await client.ask("/images/demo"))[0] == 404
        assert not paths_of(home).store.exists()
