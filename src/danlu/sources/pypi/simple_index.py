"""Find the URL of a file on the user's indexes, from their HTML pages (PEP 503).

uv finds wheels by itself. For a source distribution it would want the metadata as well, and run its
build code to get it.
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Sequence
from functools import partial
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urljoin, urlsplit

import msgspec

from danlu.environment.package_names import normalize_name
from danlu.errors import ChecksumError, OutsideError, TemporaryError
from danlu.sources.http import FetchedFile, fetch
from danlu.sources.pypi.indexes import to_index_url, uv_environment
from danlu.sources.pypi.uv import Uv
from danlu.sources.pypi.uv_errors import uv_error
from danlu.util.tasks import run_concurrently

_MAX_PAGES = 8


class _LinkParser(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


async def fetch_file(uv: Uv, name: str, file: str, sha256: str, *, cache: Path) -> FetchedFile:
    """Download ``file`` of the package ``name`` from any index that has it, and verify it.

    Raises :class:`OutsideError` naming the file if no index has it, :class:`ChecksumError` if it
    differs.
    """
    kept = cache / "sha256" / sha256
    if kept.exists():
        return FetchedFile(kept, sha256, kept.stat().st_size)
    if uv.offline:
        raise OutsideError(f"{file} is not cached and cannot be fetched with --offline")
    differing: ChecksumError | None = None
    async for address in _find_addresses(uv, name, file, cache):
        try:
            return await fetch(address, sha256, cache=cache)
        except ChecksumError as error:  # another index may have the right one
            differing = differing or error
    assert differing is not None
    raise differing


async def find_file(uv: Uv, name: str, file: str, *, cache: Path) -> str:
    """Return the URL of ``file`` of the package ``name`` on any index that has it.

    Raises :class:`OutsideError` naming the file if no index has it.
    """
    return await anext(_find_addresses(uv, name, file, cache))


async def _find_addresses(uv: Uv, name: str, file: str, cache: Path) -> AsyncIterator[str]:
    """Yield the URLs of ``file`` on all indexes; raises :class:`OutsideError` if none has it."""
    problems: list[str] = []
    is_found = False
    for page in (await _find_places(uv)).list_pages(name):
        try:
            address = await _find_on_page(page, file, cache)
        except TemporaryError:
            raise
        except OutsideError as error:
            problems.append(error.message)
            continue
        if address:
            is_found = True
            yield address
    if not is_found:
        raise OutsideError(
            f"no package index has the locked file {file} any more",
            hint=f"run `danlu lock --upgrade {name}` to lock an available version",
            details=tuple(problems),
        )


async def list_files(uv: Uv, names: Sequence[str], *, cache: Path) -> dict[str, dict[str, str]]:
    """Return the files of each package on all indexes that have it: their URLs by file name.

    If several indexes have a file, that of the first counts. Indexes without a package are skipped.
    """

    async def list_one(name: str) -> dict[str, str]:
        files: dict[str, str] = {}
        for page in places.list_pages(name):
            try:
                addresses = await _read_addresses(page, cache)
            except TemporaryError:
                raise
            except OutsideError:
                continue
            files = {_file_name(address): address for address in addresses} | files
        return files

    places = await _find_places(uv)
    found = await run_concurrently([partial(list_one, name) for name in names], limit=_MAX_PAGES)
    return dict(zip(names, found, strict=True))


class _IndexPlaces(msgspec.Struct, frozen=True):
    """Where packages are: pages of find-links, and indexes."""

    links: Sequence[str]
    indexes: Sequence[str]

    def list_pages(self, name: str) -> list[str]:
        """Return the URLs of pages that may link to a package, those of find-links first."""
        normalized = normalize_name(name)
        return [*self.links, *(f"{index.rstrip('/')}/{normalized}/" for index in self.indexes)]


async def _find_places(uv: Uv) -> _IndexPlaces:
    """Ask uv which indexes it uses: only uv knows all its configuration files and defaults."""
    options = ["--emit-index-url", "--emit-find-links", "-"]
    code, output, messages = await uv.run(("pip", "compile"), options, offline=True)
    if code:
        raise uv_error(messages, doing="reading the configuration of uv")
    urls: dict[str, list[str]] = {}
    for line in output.splitlines():
        option, _, value = line.strip().partition(" ")
        if option.startswith("--"):
            urls.setdefault(option, []).append(to_index_url(value, uv.project))
    indexes = [*urls.get("--extra-index-url", ()), *urls.get("--index-url", ())]
    if uv_environment(uv.indexes, uv.project).get("UV_NO_INDEX"):
        indexes = []
    return _IndexPlaces(urls.get("--find-links", ()), indexes)


async def _find_on_page(page: str, file: str, cache: Path) -> str:
    """Return the URL of ``file`` on ``page``, or an empty text."""
    for address in await _read_addresses(page, cache):
        if _file_name(address) == file:
            return address.partition("#")[0]
    return ""


async def fetch_changing(url: str, cache: Path, *, limit: int = 0) -> bytes:
    """Return what is at ``url`` now; nothing is kept, because it can change.

    Raises as :func:`~danlu.sources.http.fetch` does, and :class:`OutsideError` for more than
    ``limit`` bytes (0: any number).
    """
    cache.mkdir(parents=True, exist_ok=True)
    # Its own directory: the same content may be fetched twice at the same time.
    with tempfile.TemporaryDirectory(prefix=".page-", dir=cache) as place:
        fetched = await fetch(url, None, cache=Path(place))
        if limit and fetched.size > limit:
            raise OutsideError(f"{_file_name(url)} of a package index is too large")
        return fetched.path.read_bytes()


def _file_name(address: str) -> str:
    return unquote(urlsplit(address).path).rpartition("/")[2]


async def _read_addresses(page: str, cache: Path) -> list[str]:
    """Return the URLs that ``page`` links to, and those of files of a directory without a page."""
    files: list[str] = []
    if page.startswith("file:"):
        directory = Path(unquote(urlsplit(page).path))
        if directory.is_dir():
            files = [path.as_uri() for path in sorted(directory.iterdir()) if path.is_file()]
            if not (directory / "index.html").is_file():
                return files
            page = (directory / "index.html").as_uri()
    links = _LinkParser()
    links.feed((await fetch_changing(page, cache)).decode(errors="replace"))
    return [*files, *(urljoin(page, link) for link in links.found)]
