"""The former module of the kernel's class, which kernelspecs of existing installations name."""

from danlu.notebook.kernel import DanluKernel

__all__ = ["DanluKernel"]
