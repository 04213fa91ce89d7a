"""Ready-made predictors: each module is copied to the image and runs there.

They import nothing of danlu, and frameworks by name, so that danlu and its type checks need none.
"""
