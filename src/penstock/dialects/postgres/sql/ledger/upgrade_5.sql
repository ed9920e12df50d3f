-- Version 5: which tables setup has made. Nothing is known of those that an earlier version made.

CREATE TABLE IF NOT EXISTS penstock.made (
  process text NOT NULL,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  relid oid NOT NULL,
  PRIMARY KEY (process, schema_name, table_name)
);
COMMENT ON TABLE penstock.made IS 'tables that setup has made, and so gives what the source''s have besides; others are left as they are';
