"""Random statements and random values, held against a database without Penstock, and against the copy."""
