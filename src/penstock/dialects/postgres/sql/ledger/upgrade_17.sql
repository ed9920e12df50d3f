-- Version 17: how many changes runs have applied, by table and operation.

CREATE TABLE IF NOT EXISTS penstock.table_count (
  process text NOT NULL REFERENCES penstock.process ON DELETE CASCADE,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  op text NOT NULL,
  changes bigint NOT NULL,
  PRIMARY KEY (process, schema_name, table_name, op)
) WITH (fillfactor = 50);
COMMENT ON TABLE penstock.table_count IS 'changes that runs have applied; a batch that was broken off may be missing, and nothing is decided by it';
