"""danlu's frameworks: one file each, and one line in :mod:`danlu.training.registry`.

No framework imports another. What they share is in :mod:`danlu.training.framework` and
:mod:`danlu.training.pod_template`, which other packages may use too.
"""
