"""What is kept, and where: backends state their features here; `postgres` is the one that serves."""
