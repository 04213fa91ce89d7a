"""Code that kernels inside an environment import. It is sent there by the environment's bridge.

It imports only the standard library, IPython's shell that it is given, and
:mod:`danlu.replica_runtime`, which is sent with it. An environment's Python can be as old as 3.6.
"""
