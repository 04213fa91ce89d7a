"""GPUs of this machine in containers."""
