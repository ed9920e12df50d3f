-- Version 16: entries of the error queue that a person has put on hold.

ALTER TABLE penstock.error ADD COLUMN IF NOT EXISTS on_hold_at timestamptz;
ALTER TABLE penstock.error ADD COLUMN IF NOT EXISTS on_hold_by text;
ALTER TABLE penstock.error ADD COLUMN IF NOT EXISTS on_hold_note text;
COMMENT ON COLUMN penstock.error.on_hold_at IS 'when a person put it on hold: nobody applies or deletes it until it is released; null where it is not on hold';
COMMENT ON COLUMN penstock.error.on_hold_by IS 'who did, to the server and as the client said';
COMMENT ON COLUMN penstock.error.on_hold_note IS 'why';

ALTER TABLE penstock.error_action ADD COLUMN IF NOT EXISTS note text;
COMMENT ON COLUMN penstock.error_action.note IS 'why an entry was put on hold, as that person wrote it';
ALTER TABLE penstock.error_action DROP CONSTRAINT IF EXISTS error_action_action_check;
ALTER TABLE penstock.error_action ADD CONSTRAINT error_action_action_check
  CHECK (action IN ('retry', 'edit', 'delete', 'dry run', 'go on', 'hold', 'release'));
ALTER TABLE penstock.error_action DROP CONSTRAINT IF EXISTS error_action_outcome_check;
ALTER TABLE penstock.error_action ADD CONSTRAINT error_action_outcome_check
  CHECK (outcome IN ('applied', 'failed', 'deleted', 'would apply', 'would fail', 'on hold', 'released'));
