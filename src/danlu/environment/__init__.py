"""Environments and locks as frozen values: what the user describes, and what that was pinned to.

Pure: callers read and write the files.
"""
