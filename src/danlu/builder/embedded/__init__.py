"""The embedded builder: no daemon, one store, steps in an OCI runtime."""
