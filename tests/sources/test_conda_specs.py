"""Specifications, environment files and names of conda: the same as conda, or refused by name.

``conda_cases.json`` has the answers of conda 26.7 (development): for specifications the indexes of
the records that match, or null if conda refuses; for names those of conda-pypi 0.13.1.
"""

from __future__ import annotations

import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
import rattler
from packaging.specifiers import SpecifierSet

from danlu.convert import init
from danlu.errors import ResolveError, UsageError
from danlu.sources.conda.match_spec import parse_match_spec, split_spec, to_pep440
from danlu.sources.environment_file import parse_environment_file

CASES: dict[str, Any] = json.loads(Path(__file__).with_name("conda_cases.json").read_text())


def package_record(text: str) -> rattler.PackageRecord:
    name, version, build = text.rsplit("-", 2)
    return rattler.PackageRecord(name, version, rattler.BuildString(build), 0, "linux-64")


@pytest.mark.parametrize(("text", "matching"), CASES["specs"])
def test_specification_matches_what_conda_matches_or_is_refused(
    text: str, matching: list[int] | None
) -> None:
    channel, package = split_spec(text)
    try:
        spec = parse_match_spec(package)
    except ResolveError as error:
        refusal = error.message
    else:
        refusal = ""
    if refusal:
        assert package in refusal
        return
    name, versions = to_pep440(text)
    assert matching is not None, "conda refuses it"
    if not channel:
        records = enumerate(map(package_record, CASES["records"]))
        assert [index for index, record in records if spec.matches(record)] == matching
    if versions is not None and not channel:
        texts = [record.rsplit("-", 2) for record in CASES["records"]]
        allowed = SpecifierSet(versions)
        assert matching == [
            index
            for index, (other, version, _) in enumerate(texts)
            if other == name and allowed.contains(version, prereleases=True)
        ]


def test_version_that_pep440_cannot_express_stays_a_conda_package() -> None:
    assert to_pep440("six=1.16|1.15") == ("six", None)
    assert to_pep440("pytorch=2.1=py310_cuda*") == ("pytorch", None)
    assert to_pep440("numpy[build_number=1]") == ("numpy", None)
    assert to_pep440("NumPy >=1.20,<2") == ("numpy", ">=1.20,<2")
    assert to_pep440("conda-forge::numpy=1.26") == ("numpy", "==1.26.*")
    assert to_pep440("numpy==1.26") == ("numpy", "==1.26")
    assert to_pep440("numpy") == ("numpy", "")


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_translated_specifications_match_the_same_versions(seed: int) -> None:
    chosen = random.Random(seed)
    versions = [
        ".".join(str(chosen.randint(0, 3)) for _ in range(chosen.randint(1, 4))) for _ in range(40)
    ]
    records = [package_record(f"p-{version}-0") for version in versions]
    translated = 0
    for _ in range(2000 if seed else 200):
        text = random_spec(chosen)
        try:
            _, allowed = to_pep440(text)
        except ResolveError:
            continue
        if allowed is None:
            continue
        translated += 1
        expected = [rattler.MatchSpec(text, strict=False).matches(record) for record in records]
        found = [SpecifierSet(allowed).contains(version, prereleases=True) for version in versions]
        assert found == expected, (text, allowed)
    assert translated > 20


def random_spec(chosen: random.Random) -> str:
    def clause() -> str:
        operator = chosen.choice(["", "=", "==", ">=", "<=", ">", "<", "!=", "~="])
        number = ".".join(str(chosen.randint(0, 3)) for _ in range(chosen.randint(1, 3)))
        return operator + number + chosen.choice(["", "", ".*", "*", "rc1", "_1"])

    joined = clause()
    for _ in range(chosen.randint(0, 2)):
        joined += chosen.choice([",", ",", "|"]) + clause()
    build = chosen.choice(["", "", "", "=py310_0", "=*"])
    space = " " if joined[0].isdigit() else chosen.choice(["", " "])
    return f"p{space}{joined}{build}"


@pytest.mark.parametrize("case", CASES["files"], ids=lambda case: str(case["text"]))
def test_environment_file_is_read_as_by_conda_or_refused(case: dict[str, Any]) -> None:
    try:
        file = parse_environment_file(case["text"], "environment.yml")
        for _, spec in file.specs:
            parse_match_spec(spec)
    except (UsageError, ResolveError) as error:
        refusal = error.message
    else:
        refusal = ""
    right = case["right"]
    if refusal:
        assert re.match("environment.yml|invalid conda package 'python {{ v }}'", refusal)
        return
    assert right != "refused"
    assert [spec for _, spec in file.specs] == right["conda"]
    assert [line for _, line in file.pip] == right["pip"]
    assert list(file.channels) == right.get("channels", [])
    assert file.variables == {
        name: str(value) for name, value in right.get("variables", {}).items()
    }


@pytest.mark.parametrize(("name", "project"), CASES["names"])
def test_conda_name_becomes_its_pypi_project_or_stays_with_conda(
    tmp_path: Path, name: str, project: str | None
) -> None:
    (tmp_path / "environment.yml").write_text(f"dependencies: [{name}]\n")
    text = init(tmp_path).text
    if project is None or "install.conda_packages" in text:
        assert 'install.conda_packages(env_file="environment.yml")' in text
    else:
        assert f'install.python_packages(["{project}"])' in text


@pytest.mark.parametrize(
    "name",
    ["nodejs", "samtools", "hdf5", "postgresql", "lmdb", "ignite==0.4.7", "faiss", "team::numpy"],
)
def test_conda_package_that_is_not_known_to_be_on_pypi_stays_one(tmp_path: Path, name: str) -> None:
    (tmp_path / "environment.yml").write_text(f"dependencies: [python=3.11, {name}]\n")
    report = init(tmp_path)
    assert 'install.conda_packages(env_file="environment.yml")' in report.text
    assert "install.python_packages" not in report.text
    assert any(note.startswith(f"{name} has no known equivalent") for note in report.notes)
