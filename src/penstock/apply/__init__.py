"""Applying changes to a target: whole transactions, in a legal order, exactly once."""
