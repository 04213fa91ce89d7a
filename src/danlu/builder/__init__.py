"""Builders turn a graph into an image. Each builder is a subpackage."""
