"""danlu."""
