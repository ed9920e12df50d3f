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

-- Nobody else has a right on what is new, also where ALTER DEFAULT PRIVILEGES gives them one. What was granted since stays.
DO $$
DECLARE
  given record;
BEGIN
  IF EXISTS (SELECT FROM {set}.documented WHERE schema_name = {schema_name} AND prefix = {prefix}) THEN
    RETURN;
  END IF;
  FOR given IN
    SELECT DISTINCT CASE c.relkind WHEN 'S' THEN 'SEQUENCE' ELSE 'TABLE' END AS kind, c.oid::regclass::text AS name,
      coalesce(quote_ident(r.rolname), 'PUBLIC') AS grantee
    FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace, aclexplode(c.relacl) a LEFT JOIN pg_roles r ON r.oid = a.grantee
    WHERE c.relkind IN ('r', 'v', 'S') AND a.grantee <> c.relowner AND (n.nspname = {schema_name} AND c.relname = ANY ({relations})
      OR n.nspname = {name} AND c.relname = ANY ({inner_relations}))
    UNION ALL
    SELECT DISTINCT 'FUNCTION', p.oid::regprocedure::text, quote_ident(r.rolname)
    FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace, aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee
    WHERE a.grantee <> p.proowner AND n.nspname = {schema_name} AND p.proname = ANY ({functions})
  LOOP
    EXECUTE format('REVOKE ALL ON %s %s FROM %s', given.kind, given.name, given.grantee);
  END LOOP;
END $$;
