mkdir digits && cd digits
