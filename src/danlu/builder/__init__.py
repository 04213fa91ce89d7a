"""Builders: a graph becomes an image. Each builder is a package of its own beside this module."""
