"""Kubernetes' API under the operator: requests, caches that follow it, controllers that act on it.

It knows nothing of training. Modules are imported by name; those that speak HTTP import aiohttp.
"""
