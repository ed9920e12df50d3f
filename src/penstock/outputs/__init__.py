"""What becomes of the changes of a slice."""
