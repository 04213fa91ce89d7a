"""BuildKit as the builder that runs commands: the same graph, steps in a buildkitd."""
