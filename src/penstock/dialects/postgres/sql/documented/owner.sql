-- All of it is the set's owner's, whoever makes it: functions run with the rights of their owner.
DO $$
DECLARE
  owner oid := (SELECT relowner FROM pg_class WHERE oid = '{set}.captured'::regclass);
  made record;
BEGIN
  FOR made IN
    SELECT p.oid::regprocedure AS name FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE n.nspname = {schema_name} AND p.proname = ANY ({functions})
  LOOP
    EXECUTE format('COMMENT ON FUNCTION %s IS %L', made.name, {comment});
  END LOOP;
  FOR made IN
    SELECT 'FUNCTION' AS kind, p.oid::regprocedure::text AS name FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
    WHERE p.proowner <> owner AND (n.nspname = {schema_name} AND p.proname = ANY ({functions})
      OR n.nspname = {name} AND p.proname = ANY ({inner_functions}))
    UNION ALL
    SELECT CASE c.relkind WHEN 'v' THEN 'VIEW' WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END, c.oid::regclass::text
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
    WHERE c.relowner <> owner AND c.relkind IN ('r', 'v', 'S') AND (n.nspname = {schema_name} AND c.relname = ANY ({relations})
      OR n.nspname = {name} AND c.relname = ANY ({inner_relations}))
  LOOP
    EXECUTE format('ALTER %s %s OWNER TO %s', made.kind, made.name, owner::regrole);
  END LOOP;
END $$;
