"""A package beside the notebook: how a network is taught."""

from .course import teach

__all__ = ["teach"]
