"""The model server of packed images: standard protocols over HTTP for a predictor.

Copied into the image, next to uvicorn and what else it needs, and run there by the image's Python
(3.9 or later); so its modules import each other relatively, and nothing else of danlu.
"""

#: Connections that wait to be accepted.
BACKLOG = 2048
#: The exit code of a worker that cannot load the model.
CANNOT_LOAD = 3
