-- Version 6: a log of the conflicts that were resolved.

ALTER TABLE penstock.lane ADD COLUMN IF NOT EXISTS resolved bigint NOT NULL DEFAULT 0;

CREATE TABLE IF NOT EXISTS penstock.conflict (
  process text NOT NULL REFERENCES penstock.process ON DELETE CASCADE,
  id bigint GENERATED ALWAYS AS IDENTITY,
  txn_id text NOT NULL,
  commit_scn bigint NOT NULL,
  message_number int NOT NULL,
  op text NOT NULL,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  error_number int NOT NULL,
  row_is text CHECK (row_is IN ('exists', 'missing')),
  method text NOT NULL,
  outcome text NOT NULL CHECK (outcome IN ('applied', 'discarded', 'merged', 'recorded')),
  columns text[] NOT NULL,
  resolved_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (process, id)
);
COMMENT ON TABLE penstock.conflict IS 'the conflict log: conflicts and errors that were resolved; nobody reads it, so old rows may be deleted';
COMMENT ON COLUMN penstock.conflict.row_is IS 'the row that the change looked for, or the row in its place; null for an error';
COMMENT ON COLUMN penstock.conflict.columns IS 'the list that was decided about';
