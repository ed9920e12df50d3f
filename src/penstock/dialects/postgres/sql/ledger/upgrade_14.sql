-- Version 14: a log of the DDL that was carried out, or left out.

CREATE TABLE IF NOT EXISTS penstock.ddl (
  process text NOT NULL REFERENCES penstock.process ON DELETE CASCADE,
  id bigint GENERATED ALWAYS AS IDENTITY,
  txn_id text NOT NULL,
  commit_scn bigint NOT NULL,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  outcome text NOT NULL CHECK (outcome IN ('applied', 'left out')),
  done text[] NOT NULL,
  is_loss boolean NOT NULL,
  done_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (process, id)
);
COMMENT ON TABLE penstock.ddl IS 'what DDL of the source has done to tables; nothing is decided by it, so old rows may be deleted';
COMMENT ON COLUMN penstock.ddl.done IS 'what was done to the table, in words';
COMMENT ON COLUMN penstock.ddl.is_loss IS 'rows, or values of a column, went with it';
