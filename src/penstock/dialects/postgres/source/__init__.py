"""PostgreSQL as a source: what captures changes in it, and reads them."""
