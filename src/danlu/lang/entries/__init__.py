"""The entries of the function table, one namespace of the language a module."""
