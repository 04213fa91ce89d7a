"""danlu takes machine-learning work from a laptop to a cluster in one tool.

In a ``build.py`` the functions of the build language are imported from here
(``from danlu import base, install, run``); they are loaded when first asked for.
"""

__version__ = "0.1.0"
