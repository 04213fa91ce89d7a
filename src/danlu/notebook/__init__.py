"""Training jobs from cells: magics for any IPython kernel, one that has them loaded, live views.

``%load_ext danlu.notebook`` loads the magics; nothing of IPython is imported before that.
"""
