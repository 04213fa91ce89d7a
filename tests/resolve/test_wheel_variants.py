"""Wheels for a level of processors are chosen by the environment's level, not by this machine's."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import anyio
import pytest

from danlu.errors import OutsideError
from danlu.sources.pypi.uv import Uv, find_uv
from danlu.sources.pypi.variant_labels import split_variant_label
from danlu.sources.pypi.wheel_variants import find_level_wheels
from tests.fakes.wheels import make_level_wheels, make_wheel, sha256_of
from tests.resolve.resolver import DEBIAN, PythonResolver

LEVELS = {"two": "v2", "three": "v3", "four": "v4"}
PLAIN = "fast-1.0-py3-none-any.whl"


@pytest.fixture
def resolver(tmp_path: Path) -> PythonResolver:
    resolver = PythonResolver(tmp_path)
    make_level_wheels(resolver.links, "fast", LEVELS)
    return resolver


def choose(resolver: PythonResolver, level: str, *more: str) -> dict[str, str]:
    request = resolver.request("fast")
    uv = Uv(request.paths.cache / "uv", resolver.project, request.indexes)
    wheels = {"fast": PLAIN, **{name: f"{name}-1.0-py3-none-any.whl" for name in more}}

    async def find() -> dict[str, str]:
        found = await find_level_wheels(
            uv, wheels, level, DEBIAN, cache=request.paths.cache / "http"
        )
        for wheel in found.values():
            assert wheel.sha256 == sha256_of(resolver.links / wheel.file)
            assert wheel.size == (resolver.links / wheel.file).stat().st_size
        return {name: wheel.file for name, wheel in found.items()}

    return anyio.run(find)


def change_variants(resolver: PythonResolver, variants: object) -> None:
    file = resolver.links / "fast-1.0-variants.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"variants": variants}))


@pytest.mark.parametrize(
    ("level", "label"), [("x86-64-v2", "two"), ("x86-64-v3", "three"), ("x86-64-v4", "four")]
)
def test_the_highest_level_up_to_the_environments_is_chosen(
    resolver: PythonResolver, level: str, label: str
) -> None:
    assert choose(resolver, level) == {"fast": f"fast-1.0-py3-none-any-{label}.whl"}
    (resolver.links / f"fast-1.0-py3-none-any-{label}.whl").unlink()
    lower = {"two": {}, "three": "two", "four": "three"}[label]
    expected = {"fast": f"fast-1.0-py3-none-any-{lower}.whl"} if lower else {}
    assert choose(resolver, level) == expected


def test_packages_with_equal_descriptions_do_not_disturb_one_another(
    resolver: PythonResolver,
) -> None:
    names = [f"more{number}" for number in range(20)]
    for name in names:
        make_level_wheels(resolver.links, name, LEVELS)
    assert set(choose(resolver, "x86-64-v3", *names)) == {"fast", *names}


def test_packages_without_such_wheels_keep_theirs(resolver: PythonResolver) -> None:
    make_wheel(resolver.links, "plain")
    assert set(choose(resolver, "x86-64-v3", "plain", "absent")) == {"fast"}


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"x86_64": {"level": ["v3", "v2"]}},
        {"x86_64": {"level": ["v3"], "avx512": ["on"]}},
        {"x86_64": {"level": ["v3"]}, "nvidia": {"sm_arch": ["90"]}},
        {"aarch64": {"level": ["v3"]}},
        "v3",
    ],
)
def test_wheels_that_need_anything_else_are_not_chosen(
    resolver: PythonResolver, properties: object
) -> None:
    change_variants(resolver, {"three": properties})
    assert choose(resolver, "x86-64-v3") == {}


@pytest.mark.parametrize("variants", [[], "x", None])
def test_what_does_not_list_variants_is_an_error(
    resolver: PythonResolver, variants: object
) -> None:
    change_variants(resolver, variants)
    with pytest.raises(OutsideError, match=r"fast-1\.0-variants\.json .* does not list variants"):
        choose(resolver, "x86-64-v3")


def test_description_is_limited(resolver: PythonResolver) -> None:
    change_variants(resolver, {"x" * (1 << 20): {}})
    with pytest.raises(OutsideError, match="is too large"):
        choose(resolver, "x86-64-v3")


def test_labels_are_not_paths(resolver: PythonResolver) -> None:
    change_variants(resolver, {"../three": {"x86_64": {"level": ["v3"]}}})
    assert choose(resolver, "x86-64-v3") == {}


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("a-1.0-py3-none-any.whl", ("a-1.0-py3-none-any.whl", "")),
        ("a-1.0-1-py3-none-any.whl", ("a-1.0-1-py3-none-any.whl", "")),
        ("a-1.0-py3-none-any-v3.whl", ("a-1.0-py3-none-any.whl", "v3")),
        ("a-1.0-1x-cp311-abi3-linux_x86_64-v3.whl", ("a-1.0-1x-cp311-abi3-linux_x86_64.whl", "v3")),
        ("a-1.0.tar.gz", ("a-1.0.tar.gz", "")),
        ("a.whl", ("a.whl", "")),
    ],
)
def test_label_is_after_the_tags(file: str, expected: tuple[str, str]) -> None:
    assert split_variant_label(file) == expected


def test_uv_reads_the_same_names_and_descriptions(resolver: PythonResolver) -> None:
    """It knows no provider of that name, and so takes the wheel for all processors."""
    command: list[Any] = [find_uv(), "pip", "compile", "-", "--no-index", "--no-header"]
    command += ["--find-links", resolver.links, "--preview-features", "wheel-variants", "-v"]
    done = subprocess.run(
        command, input="fast", capture_output=True, text=True, check=False, cwd=resolver.project
    )
    assert done.returncode == 0, done.stderr
    assert "Skipping unsupported wheel variant provider `x86_64`" in done.stderr
    assert f"Selecting: fast==1.0 [compatible] ({PLAIN})" in done.stderr
