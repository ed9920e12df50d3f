-- Since this was planned another role may have made something of one of these names, whose code would run here.
DO $$ BEGIN
  IF EXISTS (
    SELECT FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE n.nspname = {schema_name} AND c.relname = ANY ({relations})
      AND c.relowner <> (SELECT relowner FROM pg_class WHERE oid = '{set}.captured'::regclass)
    UNION ALL
    SELECT FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = {schema_name} AND p.proname = ANY ({functions})
      AND p.proowner <> (SELECT relowner FROM pg_class WHERE oid = '{set}.captured'::regclass)) THEN
    RAISE EXCEPTION 'another role has made something by the name of a documented table; plan again'
      USING ERRCODE = 'object_not_in_prerequisite_state';
  END IF;
END $$;
