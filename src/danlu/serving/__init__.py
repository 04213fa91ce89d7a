"""Packed models: a predictor, its model files, and the least environment that it needs.

``danlu pack`` runs a predictor on example inputs in a container of the training environment,
records which packages' files it used (:mod:`danlu.serving.runner`, which runs inside), plans a
smaller environment from the same lock (:mod:`danlu.serving.reduction`), and records the outputs
(:mod:`danlu.serving.golden`) that ``danlu verify`` compares with those of a fresh container.

In the image everything lies below :data:`danlu.serving.layout.ROOT`; ``run.py`` there is the
runner. Nothing of danlu is imported inside.
"""
