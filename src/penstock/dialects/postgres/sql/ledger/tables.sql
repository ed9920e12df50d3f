-- The ledger: what apply processes write down at the target, in the same transactions as the rows.
-- This is the newest version, for a database that has none; upgrade_<n>.sql brings version n - 1 to the same. Whoever
-- changes anything here writes the next of them, and raises the number in ledger_version.py.

CREATE TABLE penstock.process (
  name text PRIMARY KEY,
  source text NOT NULL,
  epoch bigint NOT NULL DEFAULT 0,
  status text NOT NULL DEFAULT 'DISABLED' CHECK (status IN ('ENABLED', 'DISABLED', 'ABORTED')),
  status_at timestamptz NOT NULL DEFAULT now(),
  error text,
  low_watermark bigint NOT NULL DEFAULT 0,
  high_watermark bigint NOT NULL DEFAULT 0,
  consistent_at timestamptz,
  applied_at timestamptz,
  consumer uuid NOT NULL DEFAULT gen_random_uuid(),
  set_id text,
  set_place text,
  anchor_scn bigint,
  anchor_mark text,
  reason text,
  settings jsonb NOT NULL DEFAULT '{}'
);
COMMENT ON COLUMN penstock.process.settings IS 'what the file of the last run said, as the views show it';
COMMENT ON COLUMN penstock.process.consumer IS 'what the source knows this process by';
COMMENT ON COLUMN penstock.process.set_id IS 'the capture set that is followed; set_place is where it was made';
COMMENT ON COLUMN penstock.process.anchor_scn IS 'the last tick at or before the low watermark; the source must still have it';
COMMENT ON COLUMN penstock.process.reason IS 'why the last run stopped, at status_at';
COMMENT ON COLUMN penstock.process.epoch IS 'counts the runs; writers of an earlier one are refused';
COMMENT ON COLUMN penstock.process.low_watermark IS 'every transaction up to here is applied or in the error queue';
COMMENT ON COLUMN penstock.process.consistent_at IS 'source commit time up to which all is applied';

CREATE TABLE penstock.parameter (
  process text NOT NULL,
  name text NOT NULL,
  value text NOT NULL,
  set_by text NOT NULL DEFAULT current_user,
  set_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (process, name)
);
COMMENT ON TABLE penstock.parameter IS 'parameters that were set, which come before those of the pipeline file';

CREATE TABLE penstock.stop_request (
  process text PRIMARY KEY,
  request text NOT NULL CHECK (request IN ('FINISH', 'FORCE'))
);
COMMENT ON TABLE penstock.stop_request IS 'runs that are asked to stop; beside penstock.process, whose rows are locked while changes are applied';

CREATE TABLE penstock.lane (
  process text NOT NULL REFERENCES penstock.process ON DELETE CASCADE,
  lane int NOT NULL,
  epoch bigint NOT NULL,
  attempt bigint NOT NULL,
  transactions bigint NOT NULL DEFAULT 0,
  changes bigint NOT NULL DEFAULT 0,
  errors bigint NOT NULL DEFAULT 0,
  conflicts bigint NOT NULL DEFAULT 0,
  cut_scn bigint,
  cut_mark text,
  resolved bigint NOT NULL DEFAULT 0,
  held bigint NOT NULL DEFAULT 0,
  PRIMARY KEY (process, lane)
) WITH (fillfactor = 50);
COMMENT ON COLUMN penstock.lane.cut_scn IS 'the tick behind what is applied; the source must have it';
COMMENT ON TABLE penstock.lane IS 'one row per apply server: who may write, and what it has applied';

CREATE TABLE penstock.table_count (
  process text NOT NULL REFERENCES penstock.process ON DELETE CASCADE,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  op text NOT NULL,
  changes bigint NOT NULL,
  PRIMARY KEY (process, schema_name, table_name, op)
) WITH (fillfactor = 50);
COMMENT ON TABLE penstock.table_count IS 'changes that runs have applied; a batch that was broken off may be missing, and nothing is decided by it';

CREATE TABLE penstock.applied (
  process text NOT NULL REFERENCES penstock.process ON DELETE CASCADE,
  id bigint GENERATED ALWAYS AS IDENTITY,
  highest_scn bigint NOT NULL,
  commit_scns bigint[] NOT NULL,
  PRIMARY KEY (process, id)
);
COMMENT ON TABLE penstock.applied IS 'transactions applied above the low watermark, one row per target transaction';

CREATE TABLE penstock.instantiation (
  process text NOT NULL REFERENCES penstock.process ON DELETE CASCADE,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  scn bigint NOT NULL,
  snapshot text NOT NULL,
  state text NOT NULL CHECK (state IN ('COPYING', 'READY')),
  mark text,
  PRIMARY KEY (process, schema_name, table_name)
);
COMMENT ON COLUMN penstock.instantiation.mark IS 'of the tick that the copy is as of; the source must have it';
COMMENT ON TABLE penstock.instantiation IS 'tables copied as of a position; changes up to it are already in the copy';

CREATE TABLE penstock.chunk (
  process text NOT NULL,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  chunk int NOT NULL,
  bounds jsonb NOT NULL,
  rows bigint,
  PRIMARY KEY (process, schema_name, table_name, chunk),
  FOREIGN KEY (process, schema_name, table_name) REFERENCES penstock.instantiation ON DELETE CASCADE
);
COMMENT ON COLUMN penstock.chunk.rows IS 'rows copied; null until the chunk is committed';

CREATE TABLE penstock.emptied (
  process text NOT NULL REFERENCES penstock.process ON DELETE CASCADE,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  scn bigint NOT NULL,
  PRIMARY KEY (process, schema_name, table_name)
);
COMMENT ON TABLE penstock.emptied IS 'where each table was truncated last; a retry of what came before must not undo it';

CREATE TABLE penstock.adoption (
  process text NOT NULL,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  PRIMARY KEY (process, schema_name, table_name)
);
COMMENT ON TABLE penstock.adoption IS 'tables that held rows at setup; the first copy compares them, and brings those that differ';

CREATE TABLE penstock.made (
  process text NOT NULL,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  relid oid NOT NULL,
  PRIMARY KEY (process, schema_name, table_name)
);
COMMENT ON TABLE penstock.made IS 'tables that setup has made, and so gives what the source''s have besides; others are left as they are';

CREATE TABLE penstock.dictionary (
  process text NOT NULL REFERENCES penstock.process ON DELETE CASCADE,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  version int NOT NULL,
  definition jsonb NOT NULL,
  PRIMARY KEY (process, schema_name, table_name, version)
);
COMMENT ON TABLE penstock.dictionary IS 'every version of every source table that a change may name';

CREATE TABLE penstock.error (
  process text NOT NULL REFERENCES penstock.process,
  id bigint GENERATED ALWAYS AS IDENTITY,
  txn_id text NOT NULL,
  commit_scn bigint NOT NULL,
  committed_at timestamptz,
  message_number int NOT NULL,
  message_count int NOT NULL,
  error_number int NOT NULL,
  error_code text,
  error_message text NOT NULL,
  found json,
  created_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  recipient text DEFAULT current_user,
  is_held boolean NOT NULL DEFAULT false,
  marked_by bigint,
  on_hold_at timestamptz,
  on_hold_by text,
  on_hold_note text,
  PRIMARY KEY (process, id)
);
CREATE INDEX error_order ON penstock.error (process, commit_scn, id);
COMMENT ON TABLE penstock.error IS 'the error queue: transactions that could not be applied';
COMMENT ON COLUMN penstock.error.message_number IS 'the change that failed, counted from 1; 0 when it was none of them';
COMMENT ON COLUMN penstock.error.found IS 'the row the target held instead';
COMMENT ON COLUMN penstock.error.recipient IS 'the role that could not apply it, which a retry applies it as; null where that is not known';
COMMENT ON COLUMN penstock.error.is_held IS 'it was not tried: it waits for an earlier one that it depends on';
COMMENT ON COLUMN penstock.error.marked_by IS 'the keys that its marks were made by; null where it has none';
COMMENT ON COLUMN penstock.error.on_hold_at IS 'when a person put it on hold: nobody applies or deletes it until it is released; null where it is not on hold';
COMMENT ON COLUMN penstock.error.on_hold_by IS 'who did, to the server and as the client said';
COMMENT ON COLUMN penstock.error.on_hold_note IS 'why';

CREATE TABLE penstock.error_mark (
  process text NOT NULL,
  error_id bigint NOT NULL,
  value bigint NOT NULL,
  use smallint NOT NULL,
  commit_scn bigint NOT NULL,
  PRIMARY KEY (process, error_id, value, use),
  FOREIGN KEY (process, error_id) REFERENCES penstock.error ON DELETE CASCADE
);
CREATE INDEX error_mark_value ON penstock.error_mark (process, value, use, commit_scn);
COMMENT ON TABLE penstock.error_mark IS 'hashes of the dependency values by which entries of the error queue keep later transactions back';

CREATE TABLE penstock.held (
  process text NOT NULL,
  error_id bigint NOT NULL,
  schema_name text NOT NULL,
  table_name text NOT NULL,
  PRIMARY KEY (process, error_id, schema_name, table_name),
  FOREIGN KEY (process, error_id) REFERENCES penstock.error ON DELETE CASCADE
);
COMMENT ON TABLE penstock.held IS 'tables without a key that were repaired, and so hold what a transaction did to them: a retry leaves that out';

CREATE TABLE penstock.error_change (
  process text NOT NULL,
  error_id bigint NOT NULL,
  message_number int NOT NULL,
  op text NOT NULL CHECK (op IN ('insert', 'update', 'delete', 'truncate', 'gap', 'snapshot', 'ddl', 'message')),
  schema_name text NOT NULL,
  table_name text NOT NULL,
  table_version int NOT NULL,
  change_seq bigint NOT NULL,
  before json,
  after json,
  PRIMARY KEY (process, error_id, message_number),
  FOREIGN KEY (process, error_id) REFERENCES penstock.error ON DELETE CASCADE
);

CREATE TABLE penstock.conflict (
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
COMMENT ON TABLE penstock.conflict IS 'the conflict log: conflicts and errors that were resolved; nothing is decided by it, so old rows may be deleted';
COMMENT ON COLUMN penstock.conflict.row_is IS 'the row that the change looked for, or the row in its place; null for an error';
COMMENT ON COLUMN penstock.conflict.columns IS 'the list that was decided about';

CREATE TABLE penstock.ddl (
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

CREATE TABLE penstock.error_action (
  process text NOT NULL REFERENCES penstock.process ON DELETE CASCADE,
  id bigint GENERATED ALWAYS AS IDENTITY,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  db_user text NOT NULL DEFAULT session_user,
  os_user text NOT NULL,
  host text NOT NULL,
  action text NOT NULL CHECK (action IN ('retry', 'edit', 'delete', 'dry run', 'go on', 'hold', 'release')),
  outcome text NOT NULL
    CHECK (outcome IN ('applied', 'failed', 'deleted', 'would apply', 'would fail', 'on hold', 'released')),
  error_id bigint NOT NULL,
  txn_id text NOT NULL,
  commit_scn bigint NOT NULL,
  role text,
  edits text[] NOT NULL,
  error_number int,
  error_message text,
  note text,
  PRIMARY KEY (process, id)
);
COMMENT ON TABLE penstock.error_action IS 'what people did with entries of the error queue; holds no row values';
COMMENT ON COLUMN penstock.error_action.os_user IS 'as the client says; db_user is who it was to the server';
COMMENT ON COLUMN penstock.error_action.role IS 'whose rights the changes were applied with, where these are not db_user''s';
COMMENT ON COLUMN penstock.error_action.note IS 'why an entry was put on hold, as that person wrote it';
COMMENT ON COLUMN penstock.error_action.edits IS 'which values were edited, as 2.before.price, and which changes left out, as 2';
