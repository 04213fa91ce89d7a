"""Find or build what a project runs in: its image, and how the build file starts it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from danlu.project.build_cache import lookup_environment
from danlu.store import Store

if TYPE_CHECKING:
    from danlu.engine.settings import Settings
    from danlu.environment.runtime_settings import RuntimeSettings
    from danlu.graph.progress import Progress
    from danlu.project.project import Project
    from danlu.store import StoredImage


def find_project_environment(
    project: Project,
    settings: Settings,
    progress: Progress,
    *,
    offline: bool = False,
    frozen: bool = False,
) -> tuple[StoredImage, RuntimeSettings]:
    """Return the project's image, which is built if needed, and how it is started.

    Nothing is evaluated if no file of the project has changed. Raises
    :class:`~danlu.errors.DanluError` if the build file is invalid or the build fails.
    """
    with Store.open(settings.paths.store) as store:
        found = lookup_environment(store, project)
    if found is not None:
        return found
    # A project that has not changed starts without loading the builder.
    from danlu.project.build import find_or_build_environment
    from danlu.project.build_request import BuildOptions, BuildRequest

    options = BuildOptions(offline=offline, frozen=frozen)
    return find_or_build_environment(BuildRequest(project, settings, options, progress))


def find_named_image(image: str, settings: Settings) -> StoredImage:
    """Return the image of the store that ``image`` names."""
    from danlu.image.manage import find_image  # few runs name an image

    with Store.open(settings.paths.store) as store:
        return find_image(store, image)
