-- Functions, operators and types of the names in $1 (kinds), $2 (schemas) and $3 (names) that are other roles': role, and
-- what it has. Whatever is of a name counts, for of several the nearest is called. Trusted are the same as in owners.sql.
WITH trusted AS (
  SELECT r.oid FROM pg_roles r
  WHERE r.rolsuper OR (pg_has_role(session_user, r.oid, 'MEMBER')
    AND NOT EXISTS (SELECT FROM pg_roles s WHERE s.rolsuper AND pg_has_role(session_user, s.oid, 'MEMBER')))
), thing (kind, namespace, name, shown, owner) AS (
  SELECT 'function', pronamespace, proname, oid::regprocedure::text, proowner FROM pg_proc
  UNION ALL SELECT 'operator', o.oprnamespace, o.oprname, format('operator %s', o.oid::regoperator), f.proowner
    FROM pg_operator o JOIN pg_proc f ON f.oid = o.oprcode
  UNION ALL SELECT 'type', typnamespace, typname, format('type %s', oid::regtype), typowner FROM pg_type
)
SELECT r.rolname::text, array_agg(DISTINCT t.shown)
FROM unnest($1::text[], $2::text[], $3::text[]) w (kind, schema, name)
JOIN pg_namespace n ON n.nspname = w.schema JOIN thing t ON (t.kind, t.namespace, t.name) = (w.kind, n.oid, w.name)
JOIN pg_roles r ON r.oid = t.owner
WHERE t.owner NOT IN (SELECT oid FROM trusted)
GROUP BY 1 ORDER BY 1
