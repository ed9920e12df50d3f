-- Version 7: who could not apply an entry of the error queue, and what people did with entries.

-- First without a default: who put the entries there that exist is not known.
ALTER TABLE penstock.error ADD COLUMN IF NOT EXISTS recipient text;
ALTER TABLE penstock.error ALTER COLUMN recipient SET DEFAULT current_user;
COMMENT ON COLUMN penstock.error.recipient IS 'the role that could not apply it, which a retry applies it as; null where that is not known';

CREATE TABLE IF NOT EXISTS penstock.error_action (
  process text NOT NULL REFERENCES penstock.process ON DELETE CASCADE,
  id bigint GENERATED ALWAYS AS IDENTITY,
  at timestamptz NOT NULL DEFAULT clock_timestamp(),
  db_user text NOT NULL DEFAULT session_user,
  os_user text NOT NULL,
  host text NOT NULL,
  action text NOT NULL CHECK (action IN ('retry', 'edit', 'delete', 'dry run')),
  outcome text NOT NULL CHECK (outcome IN ('applied', 'failed', 'deleted', 'would apply', 'would fail')),
  error_id bigint NOT NULL,
  txn_id text NOT NULL,
  commit_scn bigint NOT NULL,
  role text,
  edits text[] NOT NULL,
  error_number int,
  error_message text,
  PRIMARY KEY (process, id)
);
COMMENT ON TABLE penstock.error_action IS 'what people did with entries of the error queue; holds no row values';
COMMENT ON COLUMN penstock.error_action.os_user IS 'as the client says; db_user is who it was to the server';
COMMENT ON COLUMN penstock.error_action.role IS 'whose rights the changes were applied with, where these are not db_user''s';
COMMENT ON COLUMN penstock.error_action.edits IS 'which values were edited, as 2.before.price, and which changes left out, as 2';
