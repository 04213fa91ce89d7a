"""Adapters of other model servers: each calls the packed predictor. They run inside images only.

One file per server, copied as ``adapter.py``: its ``main`` gets the arguments of ``serve``. Each
imports its server, which is a package of the training environment, and :mod:`packed`. Python 3.9
and later.
"""
