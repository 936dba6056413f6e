"""What operators ask of a fleet: each answer one frozen value, rendered elsewhere."""
