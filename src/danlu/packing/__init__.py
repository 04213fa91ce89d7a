"""Pack a model into an image that is proved equal to its training environment, and serve it."""
