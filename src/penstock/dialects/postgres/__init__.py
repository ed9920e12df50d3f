"""PostgreSQL 14 and later, as source and as target."""
