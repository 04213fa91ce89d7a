"""A package next to the notebook: trains a network on all replicas."""

from .loop import train

__all__ = ["train"]
