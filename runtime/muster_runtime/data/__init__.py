"""Data in one order for the whole gang, whatever its size."""
