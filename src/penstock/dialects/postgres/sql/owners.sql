-- What in a schema of ours another role could have put its own code into, or could at any time: objects by role.
-- Who may change something is trusted if the user has all of its rights anyway: the user, a role the user is a member of,
-- and a superuser. A superuser, and who may become one, trusts superusers alone. What counts is who has logged in: code
-- that runs under SET ROLE can undo it. $1 is the schema.
WITH trusted AS (
  SELECT r.oid FROM pg_roles r
  WHERE r.rolsuper OR (pg_has_role(session_user, r.oid, 'MEMBER')
    AND NOT EXISTS (SELECT FROM pg_roles s WHERE s.rolsuper AND pg_has_role(session_user, s.oid, 'MEMBER')))
), ours AS (
  SELECT n.oid, n.nspowner, n.nspacl FROM pg_namespace n WHERE n.nspname = $1
), relation AS (
  SELECT c.oid, c.relkind, c.relname, c.relowner, c.relacl FROM pg_class c JOIN ours ON c.relnamespace = ours.oid
), part (classid, objid, name) AS (
  SELECT 'pg_class'::regclass, r.oid, format('relation %I', r.relname) FROM relation r
  UNION ALL SELECT 'pg_attrdef'::regclass, d.oid, format('a default of table %I', r.relname)
    FROM pg_attrdef d JOIN relation r ON r.oid = d.adrelid
  UNION ALL SELECT 'pg_constraint'::regclass, c.oid, format('constraint %I', c.conname)
    FROM pg_constraint c JOIN ours ON c.connamespace = ours.oid
  UNION ALL SELECT 'pg_rewrite'::regclass, w.oid, format('rule %I on %I', w.rulename, r.relname)
    FROM pg_rewrite w JOIN relation r ON r.oid = w.ev_class
  UNION ALL SELECT 'pg_policy'::regclass, p.oid, format('policy %I on %I', p.polname, r.relname)
    FROM pg_policy p JOIN relation r ON r.oid = p.polrelid
  UNION ALL SELECT 'pg_trigger'::regclass, t.oid, format('trigger %I on %I', t.tgname, r.relname)
    FROM pg_trigger t JOIN relation r ON r.oid = t.tgrelid
  UNION ALL SELECT 'pg_proc'::regclass, p.oid, format('function %I', p.proname)
    FROM pg_proc p JOIN ours ON p.pronamespace = ours.oid
), called (classid, oid, name, owner) AS (
  SELECT 'pg_proc'::regclass, p.oid, format('function %I', p.proname), p.proowner FROM pg_proc p
  UNION ALL SELECT 'pg_operator'::regclass, o.oid, format('operator %s', o.oprname), o.oprowner FROM pg_operator o
), found (what, owner) AS (
  SELECT 'the schema', ours.nspowner FROM ours
  UNION ALL SELECT format(CASE r.relkind WHEN 'v' THEN 'view %I' WHEN 'S' THEN 'sequence %I' ELSE 'table %I' END, r.relname), r.relowner
    FROM relation r WHERE r.relkind <> 'i' AND r.relkind <> 'I'
  UNION ALL SELECT format('function %I', p.proname), p.proowner FROM pg_proc p JOIN ours ON p.pronamespace = ours.oid
  UNION ALL SELECT format('operator %s', o.oprname), o.oprowner FROM pg_operator o JOIN ours ON o.oprnamespace = ours.oid
  UNION ALL SELECT format('type %I', t.typname), t.typowner FROM pg_type t JOIN ours ON t.typnamespace = ours.oid
    WHERE t.typrelid = 0 AND t.typcategory <> 'A'
  -- Who may add to it has no need to own it.
  UNION ALL SELECT 'the right to create in it', a.grantee FROM ours, aclexplode(ours.nspacl) a WHERE a.privilege_type = 'CREATE'
  UNION ALL SELECT format('the right to make triggers on table %I', r.relname), a.grantee
    FROM relation r, aclexplode(r.relacl) a WHERE a.privilege_type = 'TRIGGER'
  -- Nor who wrote what it calls.
  UNION ALL SELECT format('%s, called by %s', c.name, p.name), c.owner FROM part p
    JOIN pg_depend d ON d.classid = p.classid AND d.objid = p.objid
    JOIN called c ON c.classid = d.refclassid AND c.oid = d.refobjid
)
SELECT coalesce(r.rolname, 'public')::text, array_agg(DISTINCT f.what ORDER BY f.what)
FROM found f LEFT JOIN pg_roles r ON r.oid = f.owner
WHERE f.owner NOT IN (SELECT t.oid FROM trusted t)
GROUP BY 1 ORDER BY 1
