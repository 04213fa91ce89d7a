"""What this machine can do, and reports of bugs."""
