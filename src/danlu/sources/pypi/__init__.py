"""Python packages: resolve them with uv, and unpack their wheels into one tree each.

Only this package runs uv, knows its options and parses its messages.
"""
