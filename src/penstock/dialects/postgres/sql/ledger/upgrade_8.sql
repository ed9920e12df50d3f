-- Version 8: parameters that are set while a process runs, and how it is asked to stop.

CREATE TABLE IF NOT EXISTS penstock.parameter (
  process text NOT NULL,
  name text NOT NULL,
  value text NOT NULL,
  set_by text NOT NULL DEFAULT current_user,
  set_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (process, name)
);
COMMENT ON TABLE penstock.parameter IS 'parameters that were set, which come before those of the pipeline file';

CREATE TABLE IF NOT EXISTS penstock.stop_request (
  process text PRIMARY KEY,
  request text NOT NULL CHECK (request IN ('FINISH', 'FORCE'))
);
COMMENT ON TABLE penstock.stop_request IS 'runs that are asked to stop; beside penstock.process, whose rows are locked while changes are applied';
