"""``danlu train``: from options to a submitted job.

``options`` → ``plan`` (a job and where it runs) → ``submission`` (images, code) → ``run``.
"""
