-- Version 9: transactions that wait behind others in the error queue.

ALTER TABLE penstock.lane ADD COLUMN IF NOT EXISTS held bigint NOT NULL DEFAULT 0;

ALTER TABLE penstock.error ADD COLUMN IF NOT EXISTS is_held boolean NOT NULL DEFAULT false;
ALTER TABLE penstock.error ADD COLUMN IF NOT EXISTS marked_by bigint;
COMMENT ON COLUMN penstock.error.is_held IS 'it was not tried: it waits for an earlier one that it depends on';
COMMENT ON COLUMN penstock.error.marked_by IS 'the keys that its marks were made by; null where it has none';

CREATE TABLE IF NOT EXISTS penstock.error_mark (
  process text NOT NULL,
  error_id bigint NOT NULL,
  value bigint NOT NULL,
  use smallint NOT NULL,
  commit_scn bigint NOT NULL,
  PRIMARY KEY (process, error_id, value, use),
  FOREIGN KEY (process, error_id) REFERENCES penstock.error ON DELETE CASCADE
);
CREATE INDEX IF NOT EXISTS error_mark_value ON penstock.error_mark (process, value, use, commit_scn);
COMMENT ON TABLE penstock.error_mark IS 'hashes of the dependency values by which entries of the error queue keep later transactions back';

ALTER TABLE penstock.error_action DROP CONSTRAINT IF EXISTS error_action_action_check;
ALTER TABLE penstock.error_action ADD CONSTRAINT error_action_action_check
  CHECK (action IN ('retry', 'edit', 'delete', 'dry run', 'go on'));
