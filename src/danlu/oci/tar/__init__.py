"""Layers as tar streams: a deterministic writer, and an extractor for untrusted input.

On disk a layer is a tree in overlayfs's form (:mod:`danlu.oci.overlay`); in a tar it has OCI
whiteouts.
"""

from danlu.oci.tar.extract import (
    EntryReader,
    ExtractedLayer,
    LayerLimits,
    extract_entries,
    extract_layer,
    extract_with_tar_split,
)
from danlu.oci.tar.layer_paths import LayerSummary
from danlu.oci.tar.read import LayerError
from danlu.oci.tar.tar_split import TarSplit, rewrite_layer
from danlu.oci.tar.write import NormalizeOptions, write_layer

__all__ = [
    "EntryReader",
    "ExtractedLayer",
    "LayerError",
    "LayerLimits",
    "LayerSummary",
    "NormalizeOptions",
    "TarSplit",
    "extract_entries",
    "extract_layer",
    "extract_with_tar_split",
    "rewrite_layer",
    "write_layer",
]
