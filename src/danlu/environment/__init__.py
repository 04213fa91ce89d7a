"""Environments and locks as frozen values: what the user describes, and what it was pinned to.

Pure: reading and writing files is done by those who use it.
"""
