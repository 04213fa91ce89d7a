"""Mistakes people make in manifests, each with the one finding it must give."""
