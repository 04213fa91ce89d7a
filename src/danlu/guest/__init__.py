"""What runs inside an environment: single files, which import nothing of danlu."""
