-- Version 12: a message was not taken.

ALTER TABLE penstock.error_change DROP CONSTRAINT IF EXISTS error_change_op_check;
ALTER TABLE penstock.error_change ADD CONSTRAINT error_change_op_check
  CHECK (op IN ('insert', 'update', 'delete', 'truncate', 'gap', 'snapshot', 'ddl', 'message'));
