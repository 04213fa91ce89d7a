"""Environment and lock to build graph, one concern a module. Pure."""

from danlu.assemble.assemble import assemble, assemble_system

__all__ = ["assemble", "assemble_system"]
