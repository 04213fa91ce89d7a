"""Run commands on another machine over SSH, with the project copied there.

The other machine needs sshd, Python and what danlu needs to run containers. danlu copies itself
there, so that both sides always have the same version, and runs the command there as it would here.
"""
