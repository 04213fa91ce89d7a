from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from danlu.errors import UsageError
from danlu.oci.digest import Digest
from danlu.oci.reference import Reference

DIGEST = "sha256:" + "ab" * 32


@pytest.mark.parametrize(
    ("text", "full", "familiar"),
    [
        ("debian", "docker.io/library/debian:latest", "debian:latest"),
        ("debian:12", "docker.io/library/debian:12", "debian:12"),
        ("library/debian", "docker.io/library/debian:latest", "debian:latest"),
        ("me/app", "docker.io/me/app:latest", "me/app:latest"),
        ("docker.io/debian", "docker.io/library/debian:latest", "debian:latest"),
        ("index.docker.io/me/app:1", "docker.io/me/app:1", "me/app:1"),
        ("localhost/app", "localhost/app:latest", "localhost/app:latest"),
        ("localhost:5000/a/b/c:t", "localhost:5000/a/b/c:t", "localhost:5000/a/b/c:t"),
        ("quay.example/x@" + DIGEST, "quay.example/x@" + DIGEST, "quay.example/x@" + DIGEST),
        ("x:1@" + DIGEST, "docker.io/library/x:1@" + DIGEST, "x:1@" + DIGEST),
        ("[::1]:5000/x", "[::1]:5000/x:latest", "[::1]:5000/x:latest"),
        ("Host/x", "Host/x:latest", "Host/x:latest"),
        ("a__b-c---e/x.y", "docker.io/a__b-c---e/x.y:latest", "a__b-c---e/x.y:latest"),
    ],
)
def test_short_references_are_completed(text: str, full: str, familiar: str) -> None:
    reference = Reference.parse(text)
    assert str(reference) == full
    assert reference.familiar_name == familiar
    assert Reference.parse(full) == reference
    assert Reference.parse(familiar) == reference


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        "/",
        "/x",
        "x/",
        "a//b",
        "Debian",
        "me/App",
        "x:",
        "x:.t",
        "x:" + "t" * 129,
        "x@sha256:12",
        "x@sha512:" + "ab" * 64,
        "x@" + DIGEST.upper(),
        "http://localhost:5000/x",
        "a..b/x",
        "-a/x",
        "x y",
        "x\n",
        "../../etc/passwd",
        "host:port/x",
        "é/x",
        "a/" * 130 + "x",
        "localhost:5000/x:t\r\nHost: evil",
    ],
)
def test_invalid_reference_is_rejected_with_a_reason(text: str) -> None:
    with pytest.raises(UsageError, match="invalid image reference"):
        Reference.parse(text)


def test_capitals_are_answered_with_a_suggestion() -> None:
    with pytest.raises(UsageError) as caught:
        Reference.parse("me/App:V1")
    assert caught.value.hint == "did you mean me/app:V1?"


def test_target_is_the_digest_before_the_tag() -> None:
    reference = Reference.parse("x:1")
    assert reference.target == "1"
    assert reference.with_digest(Digest(DIGEST)).target == DIGEST


part = st.from_regex(r"[a-z0-9]{1,5}((\.|_|__|-{1,2})[a-z0-9]{1,5}){0,2}", fullmatch=True)


@given(
    registry=st.sampled_from(["docker.io", "localhost", "localhost:5000", "r.example.com:443"]),
    parts=st.lists(part, min_size=1, max_size=4),
    tag=st.from_regex(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,20}", fullmatch=True),
    digest=st.sampled_from(["", "@" + DIGEST]),
)
def test_every_reference_survives_a_round_trip(
    registry: str, parts: list[str], tag: str, digest: str
) -> None:
    reference = Reference.parse(f"{registry}/{'/'.join(parts)}:{tag}{digest}")
    assert Reference.parse(str(reference)) == reference
    assert Reference.parse(reference.familiar_name) == reference


@given(st.text(max_size=40))
def test_any_text_is_a_reference_or_a_usage_error(text: str) -> None:
    try:
        reference = Reference.parse(text)
    except UsageError:
        return
    assert Reference.parse(str(reference)) == reference
