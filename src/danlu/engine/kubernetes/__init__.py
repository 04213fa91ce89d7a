"""Environments in pods of a Kubernetes cluster, through its API.

Programs run through the subresource ``exec``. The project is copied to the pod, and what programs
make of it is copied back.
"""
