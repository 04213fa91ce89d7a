"""Programs that run inside an environment; they import nothing but the standard library.

Their text is passed to the environment's ``python3 -c``, so they need no file in the image.
"""
