"""Hooks of the documentation site (mkdocs.yml): version, links to files, Chinese text.

Pages link to examples, benchmarks and other files next to ``docs`` by relative paths, so that the
links work in a checkout. The site has copies of these files below ``repository/``; a link to a
directory leads to its README or its build file. A target that does not exist is a warning, which
fails the build.

Chinese has no spaces: a line break in a paragraph must not become one, and the search finds words
only if the characters of the index are separated.
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

_log = logging.getLogger("mkdocs.hooks.danlu")

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"

#: Files of the repository's root that are pages of the site.
PAGES = {
    ROOT / "CHANGELOG.md": "changelog.md",
    ROOT / "CONTRIBUTING.md": "contributing.md",
    ROOT / "SECURITY.md": "security.md",
}

_HAN = r"[\u4e00-\u9fff]"
_CHINESE_LINE_BREAK = re.compile(
    r"(?<=[\u3001-\u9fff\uff01-\uff5e])\n(?=[\u3001-\u9fff\uff01-\uff5e])"
)

_LINK = re.compile(r"\]\((?P<target>[^)\s#]+)(?P<anchor>#[^)\s]*)?(?=[)\s])")


def on_config(config: Any) -> Any:
    """Show danlu's version next to the site's name."""
    text = (ROOT / "src/danlu/__init__.py").read_text()
    version = re.search(r'__version__ = "([^"]+)"', text)
    assert version is not None
    config["site_name"] = f"danlu {version[1]}"
    return config


def on_files(files: Any, *, config: Any) -> Any:
    """Add the pages of the root, and every file of the repository that a page links to."""
    for source, place in PAGES.items():
        files.append(File.generated(config, place, abs_src_path=str(source)))
    waiting = [Path(file.abs_src_path) for file in files.documentation_pages()]
    known = set(waiting)
    while waiting:
        page = waiting.pop()
        for path in _find_outside_files(page):
            if path not in known:
                known.add(path)
                files.append(File.generated(config, _site_path(path), abs_src_path=str(path)))
                waiting += [path] if path.suffix == ".md" else []
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Point links that leave the docs at the site's copies."""
    source = Path(page.file.abs_src_path)
    here = Path(page.file.src_uri).parent

    def rewrite(match: re.Match[str]) -> str:
        path = _resolve_link(source, match["target"])
        if path is None or (path.is_relative_to(DOCS) and source.is_relative_to(DOCS)):
            return match[0]
        return f"]({os.path.relpath(_site_path(path), here)}{match['anchor'] or ''}"

    return _LINK.sub(rewrite, markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Join lines of Chinese text, which a browser would show with a space in between."""
    parts = re.split(r"(<pre.*?</pre>)", html, flags=re.DOTALL)
    return "".join(
        part if part.startswith("<pre") else _CHINESE_LINE_BREAK.sub("", part) for part in parts
    )


def on_post_build(config: Any) -> None:
    """Separate the Chinese characters of the search index; queries are split in the browser."""
    path = Path(config["site_dir"]) / "search/search_index.json"
    index = json.loads(path.read_text(encoding="utf-8"))
    for section in index["docs"]:
        for field in ("title", "text"):
            section[field] = re.sub(f"({_HAN})", "\u200b\\1\u200b", section[field])
    path.write_text(json.dumps(index, ensure_ascii=False), encoding="utf-8")


def _find_outside_files(page: Path) -> Iterator[Path]:
    for match in _LINK.finditer(page.read_text(encoding="utf-8")):
        path = _resolve_link(page, match["target"])
        if path is None or path.is_relative_to(DOCS):
            continue
        if path.is_file() and path.is_relative_to(ROOT):
            yield path
        else:
            _log.warning("%s links to %s, which is not a file", page, match["target"])


def _resolve_link(source: Path, target: str) -> Path | None:
    """Return the file or directory a link leads to; None for an address."""
    if "://" in target or target.startswith(("mailto:", "/")):
        return None
    path = Path(os.path.normpath(source.parent / target))
    if path.is_dir() and not path.is_relative_to(DOCS):
        names = ("README.md", "build.envd", "verify", "pytorchjob.yaml")
        path = next((path / name for name in names if (path / name).is_file()), path)
    return path


def _site_path(path: Path) -> str:
    if path in PAGES:
        return PAGES[path]
    if path.is_relative_to(DOCS):
        return str(path.relative_to(DOCS))
    # Static sites often hide names that start with a dot.
    return "repository/" + str(path.relative_to(ROOT)).lstrip(".")
