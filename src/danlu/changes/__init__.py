"""What was changed by hand in an environment, and the lines of a build file that reproduce it."""
