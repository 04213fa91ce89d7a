"""The model server of packed images: standard protocols over HTTP for a predictor.

Copied into the image, next to uvicorn and what else it needs, and run there by the image's Python
(3.9 or later); so its modules import each other relatively, and nothing else of danlu.
"""
