-- Version 10: what the last run was told by its file, and views of all that the ledger holds (views.sql).

ALTER TABLE penstock.process ADD COLUMN IF NOT EXISTS settings jsonb NOT NULL DEFAULT '{}';
COMMENT ON COLUMN penstock.process.settings IS 'what the file of the last run said, as the views show it';

COMMENT ON TABLE penstock.conflict IS 'the conflict log: conflicts and errors that were resolved; nothing is decided by it, so old rows may be deleted';
