-- Version 5: parameters that are set while a process runs, and how it is asked to stop.

ALTER TABLE penstock.process
  ADD COLUMN IF NOT EXISTS stop_request text CHECK (stop_request IN ('FINISH', 'FORCE'));
COMMENT ON COLUMN penstock.process.stop_request IS 'how the run is asked to stop; the next one forgets it';

CREATE TABLE IF NOT EXISTS penstock.parameter (
  process text NOT NULL,
  name text NOT NULL,
  value text NOT NULL,
  set_by text NOT NULL DEFAULT current_user,
  set_at timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (process, name)
);
COMMENT ON TABLE penstock.parameter IS 'parameters that were set, which come before those of the pipeline file';
