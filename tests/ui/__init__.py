"""Tests of the pages of `danlu ui`, their server and their safety."""
