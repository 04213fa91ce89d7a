"""Layers as tar streams: a deterministic writer and an extractor that trusts nothing.

On disk a layer is a tree in overlayfs's form (:mod:`danlu.oci.overlay`); in a tar it holds OCI
whiteouts.
"""

from danlu.oci.tar.extract import Extracted, Limits, extract_layer, extract_with_recipe
from danlu.oci.tar.read import LayerError
from danlu.oci.tar.recipe import Recipe, rewrite_layer
from danlu.oci.tar.summary import LayerSummary
from danlu.oci.tar.write import Normalise, write_layer

__all__ = [
    "Extracted",
    "LayerError",
    "LayerSummary",
    "Limits",
    "Normalise",
    "Recipe",
    "extract_layer",
    "extract_with_recipe",
    "rewrite_layer",
    "write_layer",
]
