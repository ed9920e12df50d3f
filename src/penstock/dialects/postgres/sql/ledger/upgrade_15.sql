-- Version 15: an index of the error queue in commit order, which pages of it are read by.

CREATE INDEX IF NOT EXISTS error_order ON penstock.error (process, commit_scn, id);
