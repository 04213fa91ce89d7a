"""Environments that stay: start them, run programs in them, look at them, stop and remove them."""
