-- What an upgrade has added belongs to the ledger's owner, whoever ran it.
DO $$
DECLARE
  owner oid := (SELECT relowner FROM pg_class WHERE oid = 'penstock.process'::regclass);
  added oid;
BEGIN
  FOR added IN
    SELECT oid FROM pg_class
    WHERE relnamespace = 'penstock'::regnamespace AND relkind IN ('r', 'v') AND relowner <> owner
  LOOP
    EXECUTE format('ALTER TABLE %s OWNER TO %I', added::regclass, pg_get_userbyid(owner));
  END LOOP;
END $$;
