"""From a root, mounts, devices, limits and a program to a running container.

Build steps, ``danlu run``, environments and local jobs all start their containers here.
"""
