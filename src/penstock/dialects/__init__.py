"""One folder per database: everything that differs by database, and nothing else."""
