"""An SSH server on the host for a running environment; the image has no sshd, key or port.

Sessions, SFTP and Unix sockets are programs started inside by an
:class:`~danlu.engine.types.ExecClient`, so the container's own limits apply to them. The server
itself never opens a path of the container.
"""
