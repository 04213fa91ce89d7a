"""The frameworks that danlu knows: one file each, and one line in :mod:`danlu.training.registry`.

No framework knows another; what they share is in :mod:`~danlu.training.frameworks.replicas` and
:mod:`~danlu.training.frameworks.pods`, which outside packages may use too.
"""
