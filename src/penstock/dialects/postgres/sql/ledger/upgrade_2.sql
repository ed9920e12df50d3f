-- Version 2: whose history a process follows, tables that were truncated, adopted or repaired.
-- Ledgers from before versions had numbers count as version 1; some of them have a part of this, or all of it.

ALTER TABLE penstock.process
  ADD COLUMN IF NOT EXISTS consumer uuid NOT NULL DEFAULT gen_random_uuid(),
  ADD COLUMN IF NOT EXISTS set_id text,
  ADD COLUMN IF NOT EXISTS set_place text,
  ADD COLUMN IF NOT EXISTS anchor_scn bigint,
  ADD COLUMN IF NOT EXISTS anchor_mark text,
  ADD COLUMN IF NOT EXISTS reason text;
COMMENT ON COLUMN penstock.process.consumer IS 'what the source knows this process by';
COMMENT ON COLUMN penstock.process.set_id IS 'the capture set that is followed; set_place is where it was made';
COMMENT ON COLUMN penstock.process.anchor_scn IS 'the last tick at or before the low watermark; the source must still have it';
COMMENT ON COLUMN penstock.process.reason IS 'why the last run stopped, at status_at';

ALTER TABLE penstock.lane ADD COLUMN IF NOT EXISTS cut_scn bigint, ADD COLUMN IF NOT EXISTS cut_mark text;
COMMENT ON COLUMN penstock.lane.cut_scn IS 'the tick behind what is applied; the source must have it';

ALTER TABLE penstock.instantiation ADD COLUMN IF NOT EXISTS mark text;
COMMENT ON COLUMN penstock.instantiation.mark IS 'of the tick that the copy is as of; the source must have it';

CREATE TABLE IF NOT EXISTS penstock.emptied (
  process text NOT NULL REFERENCES penstock.process ON DELETE CASCADE,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  scn bigint NOT NULL,
  PRIMARY KEY (process, schema_name, table_name)
);
COMMENT ON TABLE penstock.emptied IS 'where each table was truncated last; a retry of what came before must not undo it';

CREATE TABLE IF NOT EXISTS penstock.adoption (
  process text NOT NULL,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  PRIMARY KEY (process, schema_name, table_name)
);
COMMENT ON TABLE penstock.adoption IS 'tables that held rows at setup; the first copy compares them, and brings those that differ';

CREATE TABLE IF NOT EXISTS penstock.held (
  process text NOT NULL,
  error_id bigint NOT NULL,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  PRIMARY KEY (process, error_id, schema_name, table_name),
  FOREIGN KEY (process, error_id) REFERENCES penstock.error ON DELETE CASCADE
);
COMMENT ON TABLE penstock.held IS 'tables without a key that were repaired, and so hold what a transaction did to them: a retry leaves that out';

-- What was left of transactions that were retried.
DELETE FROM penstock.error_change c
WHERE NOT EXISTS (SELECT FROM penstock.error e WHERE (e.process, e.id) = (c.process, c.error_id));
