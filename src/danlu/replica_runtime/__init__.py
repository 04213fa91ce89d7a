"""Code that runs in replicas. It is copied there and imports nothing of danlu outside itself.

A replica's Python can be as old as 3.6, so these modules use only syntax and standard library
features of that version. The submitter imports some of them too.
"""
