"""Serve packed models on Kubernetes: the manifests, and what a cluster makes of them."""
