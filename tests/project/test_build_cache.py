"""The build cache finds an image only if none of its inputs has changed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from danlu.environment.runtime_settings import RuntimeMount, RuntimeSettings
from danlu.environment.types import ProjectDigests
from danlu.project import build_cache
from danlu.project.project import Project
from danlu.sources.build_context import digest_path
from danlu.sources.pypi.editable_metadata import digest_metadata
from danlu.sources.pypi.source_tree import digest_source
from danlu.store import Store, StoredImage
from danlu.util.paths import Paths

RUNTIME = RuntimeSettings(
    commands=(("train", "python train.py"),), mounts=(RuntimeMount("~/a", "/a"),), shm_size=64
)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "store") as store:
        yield store


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "project"
    (path / "data").mkdir(parents=True)
    (path / "build.envd").write_text("def build(): pass")
    (path / "lib.envd").write_text("x = 1")
    (path / "danlu.lock").write_text("version = 1")
    (path / "requirements.txt").write_text("six")
    (path / "wheel.whl").write_text("wheel")
    (path / "data/a").write_text("a")
    return path


def open_project(directory: Path, file: str = "build.envd") -> Project:
    project = Project.open(
        file, directory=directory, paths=Paths.of({"DANLU_HOME": f"{directory}-home"})
    )
    # With the texts that evaluation fills in.
    project.texts["build.envd"] = (directory / "build.envd").read_text()
    project.texts["lib.envd"] = (directory / "lib.envd").read_text()
    return project


def inputs_of(directory: Path, *, context: bool = False) -> ProjectDigests:
    return ProjectDigests(
        files={name: digest_path(directory, name) for name in ("requirements.txt", "data")},
        packages={"wheel.whl": digest_path(directory, "wheel.whl")},
        context=digest_path(directory, ".") if context else "",
        absent=("uv.lock",),
    )


@pytest.fixture
def image(store: Store, directory: Path) -> StoredImage:
    image = store.put_image(b"{}", [], names=["a"])
    build_cache.store_result(store, open_project(directory), inputs_of(directory), image, RUNTIME)
    return image


def test_lookup_finds_the_image_of_an_unchanged_project(
    store: Store, directory: Path, image: StoredImage
) -> None:
    result = build_cache.lookup(store, open_project(directory))
    assert result is not None
    assert result.digest == image.digest


def test_lookup_finds_how_the_image_is_started(
    store: Store, directory: Path, image: StoredImage
) -> None:
    result = build_cache.lookup_environment(store, open_project(directory))
    assert result is not None
    assert (result[0].digest, result[1]) == (image.digest, RUNTIME)


def rewrite(name: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).write_text("other")


def remove(name: str) -> Callable[[Path], object]:
    return lambda directory: (directory / name).unlink()


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(change(name), id=f"{change.__name__} {name}")
        for change in (rewrite, remove)
        for name in (
            "danlu.lock",
            "build.envd",
            "lib.envd",
            "requirements.txt",
            "wheel.whl",
            "data/a",
        )
        if (change, name) != (remove, "build.envd")
    ]
    + [
        pytest.param(lambda place: (place / "danlu.lock").write_text(""), id="empty lock"),
        pytest.param(lambda place: (place / "data/b").write_text("new"), id="new file"),
        pytest.param(rewrite("uv.lock"), id="a file that was absent"),
        pytest.param(lambda place: (place / "lib.envd").write_bytes(b"\xff"), id="not text"),
    ],
)
def test_lookup_misses_after_any_change(
    store: Store, directory: Path, image: StoredImage, change: Callable[[Path], object]
) -> None:
    change(directory)
    assert build_cache.lookup(store, open_project_as_found(directory)) is None


def open_project_as_found(directory: Path) -> Project:
    """Open the project before evaluation, without texts."""
    return Project.open(
        "build.envd", directory=directory, paths=Paths.of({"DANLU_HOME": f"{directory}-home"})
    )


def test_other_files_matter_only_if_a_step_mounts_the_project(
    store: Store, directory: Path, image: StoredImage
) -> None:
    (directory / "notes").write_text("new")
    assert build_cache.lookup(store, open_project(directory)) is not None
    build_cache.store_result(
        store, open_project(directory), inputs_of(directory, context=True), image, RUNTIME
    )
    assert build_cache.lookup(store, open_project(directory)) is not None
    (directory / "notes").write_text("newer")
    assert build_cache.lookup(store, open_project(directory)) is None


def test_lookup_never_answers_for_build_py(store: Store, directory: Path) -> None:
    (directory / "build.py").write_text("def build(): pass")
    project = open_project(directory, "build.py")
    build_cache.store_result(
        store, project, ProjectDigests(), store.put_image(b"{}", [], names=["a"]), RUNTIME
    )
    assert build_cache.lookup(store, project) is None


def test_lookup_is_per_function_and_directory(
    store: Store, directory: Path, image: StoredImage, tmp_path: Path
) -> None:
    project = open_project(directory)
    assert build_cache.lookup(store, replace(project, function="serve")) is None
    assert build_cache.lookup(store, replace(project, directory=tmp_path)) is None


def test_lookup_misses_if_the_image_was_removed(
    store: Store, directory: Path, image: StoredImage
) -> None:
    store.remove_image("a")
    store.collect(0)
    assert build_cache.lookup(store, open_project(directory)) is None


def test_dependencies_list_all_compared_files(
    store: Store, directory: Path, image: StoredImage
) -> None:
    files = ProjectDigests(
        files=inputs_of(directory).packages, packages=inputs_of(directory).packages
    )
    build_cache.store_result(store, open_project(directory), files, image, RUNTIME)
    listing = build_cache.list_dependencies(store, open_project(directory))
    assert set(listing or ()) == {"build.envd", "lib.envd", "wheel.whl", "danlu.lock"}


def test_no_dependencies_are_listed_for_a_directory(
    store: Store, directory: Path, image: StoredImage
) -> None:
    assert build_cache.list_dependencies(store, open_project(directory)) is None


def test_no_dependencies_are_listed_before_a_build_or_if_the_whole_project_counts(
    store: Store, directory: Path
) -> None:
    assert build_cache.list_dependencies(store, open_project(directory)) is None
    inputs = ProjectDigests(context=digest_path(directory, "."))
    image = store.put_image(b"{}", [], names=["a"])
    build_cache.store_result(store, open_project(directory), inputs, image, RUNTIME)
    assert build_cache.list_dependencies(store, open_project(directory)) is None


def test_file_that_the_project_ignores_counts_if_the_build_names_it(
    store: Store, directory: Path
) -> None:
    (directory / ".dockerignore").write_text("data\n")
    inputs = ProjectDigests(
        files={"requirements.txt": digest_path(directory, "requirements.txt")},
        packages=packages_of(directory),
        context=digest_path(directory, "."),
    )
    image = store.put_image(b"{}", [], names=["a"])
    build_cache.store_result(store, open_project(directory), inputs, image, RUNTIME)
    assert build_cache.lookup(store, open_project(directory)) is not None
    (directory / ".dockerignore").write_text("data\nrequirements.txt\n")
    changed = replace_context(inputs, digest_path(directory, "."))
    build_cache.store_result(store, open_project(directory), changed, image, RUNTIME)
    (directory / "requirements.txt").write_text("other")
    assert build_cache.lookup(store, open_project(directory)) is None


def replace_context(inputs: ProjectDigests, context: str) -> ProjectDigests:
    return ProjectDigests(files=inputs.files, packages=inputs.packages, context=context)


def packages_of(directory: Path) -> dict[str, str]:
    return {"wheel.whl": digest_path(directory, "wheel.whl")}


@pytest.mark.parametrize(
    ("inputs", "changed"),
    [
        (lambda place: ProjectDigests(), ""),
        (lambda place: ProjectDigests(files={"data": digest_path(place, "data")}), "data/a"),
        (lambda place: ProjectDigests(packages=packages_of(place)), "wheel.whl"),
        (lambda place: ProjectDigests(context=digest_path(place, ".")), "requirements.txt"),
    ],
    ids=["none", "files", "packages", "context"],
)  # fmt: skip
def test_each_kind_of_input_invalidates_the_lookup(
    store: Store, directory: Path, inputs: Callable[[Path], ProjectDigests], changed: str
) -> None:
    image = store.put_image(b"{}", [], names=["a"])
    build_cache.store_result(store, open_project(directory), inputs(directory), image, RUNTIME)
    assert build_cache.lookup(store, open_project_as_found(directory)) is not None
    if changed:
        (directory / changed).write_text("other")
        assert build_cache.lookup(store, open_project_as_found(directory)) is None


def test_an_editable_package_is_known_by_its_metadata_alone(store: Store, directory: Path) -> None:
    write_sources(directory)
    image = store.put_image(b"{}", [])
    inputs = ProjectDigests(editable={"lib": digest_metadata(directory, "lib")})
    build_cache.store_result(store, open_project(directory), inputs, image, RUNTIME)
    (directory / "lib/mine.py").write_text("x = 2")
    assert build_cache.lookup(store, open_project(directory)) is not None
    assert build_cache.list_dependencies(store, open_project(directory)) is None
    portable = replace(open_project(directory), portable=True)
    assert build_cache.lookup(store, portable) is None, "that image lacks the package"
    (directory / "lib/pyproject.toml").write_text('[project]\nname = "mine"\nversion = "2"\n')
    assert build_cache.lookup(store, open_project(directory)) is None


def test_an_image_for_elsewhere_is_known_by_the_code(store: Store, directory: Path) -> None:
    write_sources(directory)
    image = store.put_image(b"{}", [])
    inputs = ProjectDigests(
        editable={"lib": digest_metadata(directory, "lib")},
        copies={"lib": digest_source(directory, "lib")},
    )
    portable = replace(open_project(directory), portable=True)
    build_cache.store_result(store, portable, inputs, image, RUNTIME)
    assert build_cache.lookup(store, portable) is not None
    assert build_cache.lookup(store, open_project(directory)) is None
    (directory / "lib/mine.py").write_text("x = 2")
    assert build_cache.lookup(store, portable) is None


def test_without_editable_packages_every_image_can_go_elsewhere(
    store: Store, directory: Path, image: StoredImage
) -> None:
    result = build_cache.lookup(store, replace(open_project(directory), portable=True))
    assert result is not None
    assert result.digest == image.digest


def write_sources(directory: Path) -> None:
    (directory / "lib").mkdir()
    (directory / "lib/pyproject.toml").write_text('[project]\nname = "mine"\nversion = "1"\n')
    (directory / "lib/mine.py").write_text("x = 1")
