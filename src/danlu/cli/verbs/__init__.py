"""The commands, one module each; :mod:`danlu.cli.registry` lists them."""
