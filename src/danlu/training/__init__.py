"""The one brain of training jobs: their manifests, frameworks and decisions, all pure.

What is decided here is carried out by two drivers: this machine (:mod:`danlu.jobs.local`) and
Kubernetes.
"""
