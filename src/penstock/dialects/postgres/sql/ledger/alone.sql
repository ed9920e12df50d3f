-- What comes before every upgrade of the ledger: nobody uses it, and nobody who used it before goes on.
-- {found} is the comment on schema penstock that the upgrade was planned for.

-- A run that begins now waits here, and finds the new version.
LOCK TABLE penstock.process IN ACCESS EXCLUSIVE MODE;
DO $$
DECLARE
  running text;
BEGIN
  IF obj_description('penstock'::regnamespace, 'pg_namespace') IS DISTINCT FROM {found} THEN
    RAISE EXCEPTION 'the ledger is not of the version any more that this was planned for; plan again'
      USING ERRCODE = 'object_not_in_prerequisite_state';
  END IF;
  SELECT string_agg(name, ', ') INTO running FROM (
{running}
  ) r (name);
  IF running IS NOT NULL THEN
    RAISE EXCEPTION 'these processes are running: %; stop them first', running USING ERRCODE = 'object_in_use';
  END IF;
END $$;

-- What an earlier run has left at work is refused from now on.
UPDATE penstock.process SET epoch = epoch + 1;
UPDATE penstock.lane l SET epoch = p.epoch FROM penstock.process p WHERE p.name = l.process;
