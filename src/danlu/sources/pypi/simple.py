"""The address of a file on the user's indexes, read from their pages (PEP 503).

uv finds wheels by itself; of a source distribution it wants to know more than its address, and
would run it for that.
"""

from __future__ import annotations

import os
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import quote, unquote, urljoin, urlsplit

from danlu.environment.names import normalised
from danlu.errors import OutsideError, TemporaryError
from danlu.sources.http import Fetched, fetch
from danlu.sources.pypi.indexes import as_address, uv_environment
from danlu.sources.pypi.refusals import refusal
from danlu.sources.pypi.uv import Uv

__all__ = ["fetch_file", "find_file"]


class _Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.found += [value for name, value in attrs if name == "href" and value]


async def fetch_file(uv: Uv, name: str, file: str, sha256: str, *, cache: Path) -> Fetched:
    """The file called ``file`` of the package ``name``, from any index that has it, verified.

    Raises :class:`OutsideError` naming it where none has, :class:`ChecksumError` where it differs.
    """
    kept = cache / "sha256" / sha256
    if kept.exists():
        return Fetched(kept, sha256, kept.stat().st_size)
    if uv.offline:
        raise OutsideError(f"{file} is not in the cache, and --offline forbids to fetch it")
    return await fetch(await find_file(uv, name, file, cache=cache), sha256, cache=cache)


async def find_file(uv: Uv, name: str, file: str, *, cache: Path) -> str:
    """The address of the file called ``file`` of the package ``name``, on any index that has it.

    Raises :class:`OutsideError` naming it where none has.
    """
    problems: list[str] = []
    for page in await _pages(uv, name):
        try:
            address = await _find(page, file, cache)
        except TemporaryError:
            raise
        except OutsideError as error:
            problems.append(error.message)
            continue
        if address:
            return address
    raise OutsideError(
        f"no package index has {file} any more, which the lock names",
        hint=f"`danlu lock --upgrade {name}` replaces it by what there is",
        details=tuple(problems),
    )


async def _pages(uv: Uv, name: str) -> list[str]:
    """Addresses of pages that may link to the package, those of find-links first.

    uv is asked which indexes it uses, because it alone knows all its files and defaults.
    """
    options = ["--no-header", "--emit-index-url", "--emit-find-links", "-"]
    code, output, messages = await uv.run(("pip", "compile"), options, offline=True)
    if code:
        raise refusal(messages, doing="reading uv's configuration")
    found: dict[str, list[str]] = {}
    for line in output.splitlines():
        option, _, value = line.strip().partition(" ")
        if option.startswith("--"):
            found.setdefault(option, []).append(as_address(value, uv.project))
    indexes = [*found.get("--extra-index-url", ()), *found.get("--index-url", ())]
    if uv_environment(uv.indexes, uv.project).get("UV_NO_INDEX"):
        indexes = []
    return [
        *found.get("--find-links", ()),
        *(f"{index.rstrip('/')}/{normalised(name)}/" for index in indexes),
    ]


async def _find(page: str, file: str, cache: Path) -> str:
    """The address of ``file`` on ``page``, or nothing."""
    if page.startswith("file:"):
        directory = Path(unquote(urlsplit(page).path))
        if (directory / file).is_file():
            return (directory / file).as_uri()
        if directory.is_dir():
            if not (directory / "index.html").is_file():
                return ""
            page = (directory / "index.html").as_uri()
    links = _Links()
    text = (await fetch(page, None, cache=cache / "pages")).path
    links.feed(text.read_text(errors="replace"))
    os.unlink(text)
    for link in links.found:
        address = urljoin(page, link)
        if unquote(urlsplit(address).path).rpartition("/")[2] in (file, quote(file)):
            return address.partition("#")[0]
    return ""
