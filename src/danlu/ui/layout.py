"""The frame of every page: head, menu, and the parts of the page itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import sha256

from danlu.ui.html import Html, element, join_html
from danlu.ui.types import Page, PageContent, Site

_DOCTYPE = Html("<!doctype html>\n")


def render_document(title: str, *body: object, script: str, **attributes: object) -> Html:
    """Return a document with our style sheet and one script."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("title", f"{title} – danlu"),
        element("link", rel="icon", href="/static/icon.svg", type="image/svg+xml"),
        element("link", rel="stylesheet", href="/static/ui.css"),
        element("script", src=f"/static/{script}", type="module"),
    )
    return join_html(
        (_DOCTYPE, element("html", head, element("body", *body, **attributes), lang="en"))
    )


def render_page(site: Site, pages: Sequence[Page], path: str, content: PageContent) -> Html:
    """Return a page; its parts are updated while it is open."""
    links = [
        element("a", page.menu, href=page.path, aria_current="page" if page.path == path else None)
        for page in pages
        if page.menu
    ]
    where = "this machine" if site.where == "local" else site.where
    header = element(
        "header",
        element("a", "Skip to content", href="#main", class_="skip"),
        element("a", "danlu", href="/", class_="brand"),
        element("nav", links, aria_label="Pages"),
        element("span", where, class_="where"),
        element("span", "live", id="connection", class_="badge", role="status"),
    )
    parts = [element("div", html, id=name) for name, html in content.parts.items()]
    seen = digest_parts(content.parts)
    main = element("main", parts, id="main", tabindex="-1", data_seen=seen)
    message = element("div", id="message", role="alert", hidden=True)
    return render_document(content.title, header, message, main, script="ui.js")


def digest_parts(parts: Mapping[str, Html]) -> str:
    """Return a digest of the parts of a page, to know whether a browser has these."""
    return sha256("\0".join(parts.values()).encode()).hexdigest()[:16]


def render_sign_in(problem: str = "") -> Html:
    """Return the page that exchanges the token in the address for a cookie."""
    hint = "Open the address that danlu ui printed: it ends with #token=…"
    main = element(
        "main", element("h1", "danlu"), element("p", problem or hint, id="message", role="status")
    )
    return render_document("Sign in", main, script="sign_in.js", class_="centered")


def render_error(message: str, hint: str = "") -> PageContent:
    """Return the page that shows an error."""
    body = element("h1", message), element("p", hint, class_="dim")
    return PageContent("Error", {"error": join_html(body)})
