"""How a resolution that fails is explained: uv's whole derivation, and denied access as such."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from msgspec.structs import replace

from danlu.cli.error_rendering import format_error
from danlu.cli.terminal import Terminal
from danlu.environment.types import PythonPackages
from danlu.errors import OutsideError, ResolveError, Span
from danlu.sources.pypi.indexes import IndexSettings, read_index_settings
from tests.fakes.wheels import make_wheel
from tests.resolve.resolver import PythonResolver


@pytest.fixture
def unsolvable(resolver: PythonResolver, monkeypatch: pytest.MonkeyPatch) -> ResolveError:
    """The error for a set whose contradiction needs many steps to derive."""
    monkeypatch.setenv("COLUMNS", "60")  # uv wraps its messages at it
    for major in range(1, 7):
        make_wheel(resolver.links, "core", f"{major}.0")
        make_wheel(resolver.links, "tokens", f"{major}.0", requires=[f"core=={major}"])
        for minor in (0, 2):
            name = "models" if minor == 0 else "vision"
            for step in range(4):
                make_wheel(resolver.links, name, f"{major}.{step}", requires=[f"tokens=={major}.0"])
    (resolver.project / "r.txt").write_text("core<1.5\nvision>=4\nmodels>=2\n")
    with pytest.raises(ResolveError) as caught:
        resolver(resolver.request(requirements="r.txt"))
    return caught.value


def test_the_conclusion_of_an_unsolvable_set_comes_first(unsolvable: ResolveError) -> None:
    first = unsolvable.details[0]
    assert "core<1.5" in first
    assert "conclude" not in first
    assert "unsatisfiable" not in first
    # The span is that of a requirement in the contradiction, not in one of the steps.
    assert unsolvable.span is not None
    assert unsolvable.span.line in (1, 2)


def test_every_step_of_an_unsolvable_set_is_shown(unsolvable: ResolveError) -> None:
    steps = unsolvable.details[1:]
    assert len(steps) >= 3
    assert steps[0].startswith("Because ")
    for step in steps:
        assert step.startswith(("Because ", "And because "))
        assert "we can conclude that" in step
        assert not step.endswith("…")
    # The premise of the conclusion is what the last step derives.
    premise = unsolvable.details[0].split("\nand ")[0].split(", and ")[0]
    assert premise in steps[-1]


def test_an_explanation_is_wrapped_at_spaces(
    unsolvable: ResolveError, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = list(format_error(unsolvable, Terminal()))
    assert max(map(len, lines)) <= 60
    explained = " ".join(unsolvable.details).split()
    assert " ".join(explained) in " ".join(" ".join(lines).split())


@contextmanager
def serve_status(status: HTTPStatus) -> Iterator[str]:
    """An index that answers every request with ``status``; yield its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}/simple"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("status", [HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN])
@pytest.mark.parametrize("credentials", ["", "me:hunter2@"])
def test_an_index_that_denies_access_is_named(
    resolver: PythonResolver, status: HTTPStatus, credentials: str
) -> None:
    with serve_status(status) as address:
        indexes = IndexSettings(default=f"http://{credentials}{address}")
        with pytest.raises(OutsideError, match="denies access") as caught:
            resolver(replace(resolver.request("private"), indexes=indexes))
    assert address in caught.value.message
    assert f"{status.value} {status.phrase}" in caught.value.message
    assert "hunter2" not in str(caught.value.message)
    assert "token" in caught.value.hint
    assert caught.value.details == (
        "private was not found in the package registry and you require private",
    )


def test_the_unset_variable_in_the_url_of_an_index_is_named(resolver: PythonResolver) -> None:
    with serve_status(HTTPStatus.UNAUTHORIZED) as address:
        (resolver.project / "r.txt").write_text(
            f"# the team's\n--index-url http://ci:${{TEAM_INDEX_TOKEN}}@{address}\nprivate\n"
        )
        indexes = IndexSettings(default=f"http://ci:%24%7BTEAM_INDEX_TOKEN%7D@{address}")
        with pytest.raises(OutsideError, match="denies access") as caught:
            resolver(replace(resolver.request(requirements="r.txt"), indexes=indexes))
    assert "set the variable TEAM_INDEX_TOKEN" in caught.value.hint
    assert caught.value.span == Span("r.txt", 2)


@pytest.mark.parametrize("status", [HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN])
@pytest.mark.parametrize("role", ["default", "extra", "first"])
def test_an_index_that_denies_access_is_named_although_another_has_the_package(
    resolver: PythonResolver, status: HTTPStatus, role: str
) -> None:
    make_wheel(resolver.links, "a", "1.0")
    (resolver.root / "simple").mkdir()
    with serve_status(status) as address:
        url = f"http://{address}"
        indexes = IndexSettings(
            default=url if role == "default" else (resolver.root / "simple").as_uri(),
            extra=(url,) if role == "extra" else (),
            first=(url,) if role == "first" else (),
            find_links=(resolver.links.as_uri(),),
        )
        with pytest.raises(OutsideError, match="denies access") as caught:
            resolver(replace(resolver.request("a"), indexes=indexes))
    assert address in caught.value.message


def test_a_conflict_is_not_blamed_on_an_index_that_knows_no_package(
    resolver: PythonResolver,
) -> None:
    make_wheel(resolver.links, "a", "1.0")
    with serve_status(HTTPStatus.NOT_FOUND) as address:
        indexes = IndexSettings(default=f"http://{address}", find_links=(resolver.links.as_uri(),))
        with pytest.raises(ResolveError, match="cannot resolve") as caught:
            resolver(replace(resolver.request("a>=2"), indexes=indexes))
    assert "a" in caught.value.details[0]


@pytest.mark.parametrize("file", ["uv.toml", "pyproject.toml", "sub/pyproject.toml"])
@pytest.mark.parametrize("ignored", [True, False])
def test_an_index_may_deny_access_if_its_error_codes_are_ignored(
    resolver: PythonResolver, monkeypatch: pytest.MonkeyPatch, file: str, ignored: bool
) -> None:
    make_wheel(resolver.links, "a", "1.0")
    monkeypatch.delenv("UV_NO_CONFIG", raising=False)
    with serve_status(HTTPStatus.FORBIDDEN) as address:
        index = f'url = "http://{address}"\n' + ("ignore-error-codes = [403]\n" if ignored else "")
        head = '[project]\nname = "mine"\nversion = "1"\ndependencies = ["a"]\n'
        text = f"[[index]]\n{index}" if file == "uv.toml" else f"{head}[[tool.uv.index]]\n{index}"
        path = resolver.project / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        names = [] if path.parent.name == "sub" else ["a"]
        declared = PythonPackages(tuple(names), pyproject="" if names else file)
        if ignored and not names:
            with pytest.raises(ResolveError, match=r"sub/pyproject\.toml: .*`ignore-error-codes`"):
                read_index_settings(None, [declared], resolver.project)
            return
        indexes = read_index_settings(None, [declared], resolver.project)
        indexes = replace(indexes, find_links=(resolver.links.as_uri(),))
        request = replace(resolver.request(), declared=[declared], indexes=indexes)
        if ignored:
            assert resolver.pins(resolver(request)) == ["a==1.0"]
        else:
            with pytest.raises(OutsideError, match="denies access"):
                resolver(request)


def test_an_explicit_index_in_another_format_is_refused(resolver: PythonResolver) -> None:
    (resolver.project / "pyproject.toml").write_text(
        '[project]\nname = "mine"\nversion = "1"\n'
        '[[tool.uv.index]]\nname = "w"\nurl = "w"\nformat = "flat"\nexplicit = true\n'
    )
    declared = PythonPackages(pyproject="pyproject.toml")
    with pytest.raises(ResolveError, match=r"pyproject\.toml: the index .* has `format`"):
        read_index_settings(None, [declared], resolver.project)
