"""Jobs as commands and notebooks see them, wherever they run: the protocol of :mod:`.types`."""
