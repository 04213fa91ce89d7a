"""OCI images: references, manifests, layers as tar streams, layouts, archives and registries."""
