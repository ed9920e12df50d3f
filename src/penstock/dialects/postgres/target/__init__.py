"""PostgreSQL as a target: what applies changes to it, and all SQL of the ledger."""
