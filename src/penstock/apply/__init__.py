"""Applying changes to a target: whole transactions, in a legal order, exactly once. See spec rules A-1 and up."""
