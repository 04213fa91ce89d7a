"""Submit a job from a script, a module, a manifest, a function or a cell.

:mod:`~danlu.submission.options` → :mod:`~danlu.submission.plan` (a job and where it runs) →
:mod:`~danlu.submission.submission` (images, code) → :mod:`~danlu.submission.run`.
"""
