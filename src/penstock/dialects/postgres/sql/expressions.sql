-- What the expressions in `expression` (classid, objid, tree) call that is not known to be harmless: (classid, objid, what).
-- That a default draws from a sequence that it names is known; a text may not say from which.
node AS MATERIALIZED (
  SELECT e.classid, e.objid, CASE WHEN e.classid = 'pg_attrdef'::regclass
    THEN regexp_replace(e.tree, ':funcid 1574 (?::\w+ \w+ )+:args \(\{CONST ', ':args ({CONST ', 'g') ELSE e.tree END AS tree
  FROM expression e WHERE e.tree <> ''
), calling AS MATERIALIZED (
  SELECT DISTINCT n.classid, n.objid, coalesce(o.oprcode::oid, one::oid) AS oid
  FROM node n CROSS JOIN LATERAL regexp_matches(n.tree, ':(\w*funcid|opnos?) (?:\(o )?([\d ]+)', 'g') id
  CROSS JOIN LATERAL regexp_split_to_table(rtrim(id[2]), ' ') one
  LEFT JOIN pg_operator o ON id[1] LIKE 'opno%' AND o.oid = one::oid
), asked AS (
  SELECT DISTINCT c.oid FROM calling c
),
\ir harmless.sql
, unknown AS MATERIALIZED (
  SELECT c.classid, c.objid, c.oid::regprocedure::text AS what FROM calling c JOIN doubtful d ON d.oid = c.oid
  -- Nobody makes a cast between types of the server's own.
  WHERE NOT d.by_type OR EXISTS (SELECT FROM node n CROSS JOIN LATERAL regexp_matches(n.tree, ':\w*typ(?:e|eid|eId|id) (\d+)', 'g') id
    WHERE (n.classid, n.objid) = (c.classid, c.objid) AND id[1]::oid >= 16384)
  UNION
  -- Of a kind that is not known, or not by this version of ours.
  SELECT n.classid, n.objid, lower(id[1]) FROM node n CROSS JOIN LATERAL regexp_matches(n.tree, '\{([A-Z_]+)', 'g') id
  WHERE id[1] !~ ('^(VAR|CONST|FUNCEXPR|NAMEDARGEXPR|OPEXPR|DISTINCTEXPR|NULLIFEXPR|SCALARARRAYOPEXPR|BOOLEXPR|FIELDSELECT'
    || '|RELABELTYPE|COERCEVIAIO|ARRAYCOERCEEXPR|CONVERTROWTYPEEXPR|COLLATEEXPR|COLLATE|CASEEXPR|CASE|CASEWHEN|WHEN'
    || '|CASETESTEXPR|ARRAYEXPR|ARRAY|ROWEXPR|ROW|ROWCOMPAREEXPR|ROWCOMPARE|COALESCEEXPR|COALESCE|MINMAXEXPR|MINMAX'
    || '|SQLVALUEFUNCTION|NULLTEST|BOOLEANTEST|COERCETODOMAIN|COERCETODOMAINVALUE|SUBSCRIPTINGREF|JSONISPREDICATE|JSONFORMAT'
    || '|XMLEXPR)$')
)
