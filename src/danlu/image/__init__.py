"""Commands on images: list, show, compare, load, pull and remove them."""
