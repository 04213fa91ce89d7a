"""conda packages: channels, solving, and unpacking archives. rattler is imported only here."""
