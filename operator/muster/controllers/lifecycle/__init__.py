"""Pure policies of a job's life, one file each."""
