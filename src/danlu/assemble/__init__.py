"""Environment and lock to build graph, one concern a module. Pure."""

from danlu.assemble.assemble import assemble

__all__ = ["assemble"]
