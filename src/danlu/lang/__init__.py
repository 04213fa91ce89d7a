"""The build language: a ``build.envd`` or ``build.py`` in, an environment out.

The language opens no file and no connection; texts come from the
:class:`~danlu.lang.source_files.SourceLoader` that the caller passes to
:func:`danlu.lang.evaluation.evaluate`.
"""
