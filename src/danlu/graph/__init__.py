"""The build graph: ops, the vertices that carry them, their digests, and progress events.

Pure: nothing here reads a disk, a network or a clock.
"""
