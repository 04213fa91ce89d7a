"""Engines, which run environments; :mod:`danlu.engine.embedded` needs no daemon."""
