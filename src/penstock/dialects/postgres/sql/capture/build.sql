-- Capture outlives every DDL, whoever runs it. The fast part of a capture function knows the columns its table had when
-- it was built, and runs only while they are the same; after that its slow part has the statement made for the table as
-- it is now. Which of the two runs is asked when PL/pgSQL plans the question: is_current() passes for immutable, so its
-- answer becomes part of the plan, and the table's oid among its arguments makes DDL on the table, which tells every
-- session to forget the plans that depend on it, have it asked again.

-- Defaults, checks and indexes that are not unique, as they are stored: putting them into words would lock the table. `looks`
-- is the same whatever they and their columns are called. Of a partition there are none: what it has comes from its root.
-- This and other functions that are called for each table are in PL/pgSQL with a generic plan: it is made once a session,
-- where one in SQL that another function calls is planned anew each time.
CREATE OR REPLACE FUNCTION {set}.fittings(rel oid) RETURNS TABLE (kind text, name text, objid oid, is_valid bool,
  columns int2[], has_row bool, looks text)
LANGUAGE plpgsql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT f.kind, f.name, f.objid, f.is_valid, ARRAY(SELECT n FROM (
      SELECT unnest(f.columns) UNION SELECT v[1]::int2 FROM regexp_matches(f.tree, ':varattno ([0-9]+)', 'g') v) c (n)
    WHERE n > 0 ORDER BY n), f.tree ~ ':varattno 0(?![0-9])',
    md5(concat_ws(' ', f.kind, f.is_of, regexp_replace(f.tree, ':location -?[0-9]+', '', 'g')))
  FROM pg_class c CROSS JOIN LATERAL (
    SELECT 'default', d.adnum::text, d.oid, true, ARRAY[d.adnum], d.adbin::text, ''
    FROM pg_attrdef d WHERE d.adrelid = c.oid
    UNION ALL
    SELECT 'check', k.conname, k.oid, k.convalidated, '{{}}', k.conbin::text, ''
    FROM pg_constraint k WHERE k.conrelid = c.oid AND k.contype = 'c' AND k.conislocal AND k.coninhcount = 0
    UNION ALL
    SELECT 'index', x.relname, x.oid, true, i.indkey::int2[], concat(i.indexprs, i.indpred), concat_ws(' ', x.relam,
      i.indkey, i.indnkeyatts, i.indclass, i.indcollation, i.indoption, x.reloptions)
    FROM pg_index i JOIN pg_class x ON x.oid = i.indexrelid WHERE i.indrelid = c.oid AND i.indisvalid
      AND NOT i.indisunique AND NOT i.indisexclusion
  ) f (kind, name, objid, is_valid, columns, tree, is_of)
  WHERE c.oid = rel AND NOT c.relispartition;
END $$;

-- Whether a constraint of a table, or one that refers to it, may be checked at commit. No index finds constraints by the
-- table they refer to, but they depend on its columns.
CREATE OR REPLACE FUNCTION {set}.has_deferrable(rel oid) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN EXISTS (SELECT FROM pg_constraint k WHERE k.conrelid = rel AND k.condeferrable) OR EXISTS (
    SELECT FROM pg_depend d JOIN pg_constraint k ON k.oid = d.objid WHERE d.refclassid = 'pg_class'::regclass
      AND d.refobjid = rel AND d.classid = 'pg_constraint'::regclass AND k.condeferrable);
END $$;

-- What of a table its capture is built on, and what of it is followed.
CREATE OR REPLACE FUNCTION {set}.fingerprint(rel oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN (SELECT md5(jsonb_build_array(n.nspname, c.relname, c.relkind, c.relispartition, c.relkind = 'r' AND c.relhassubclass,
    (SELECT jsonb_agg(jsonb_build_array(a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.attgenerated,
      a.attcollation) ORDER BY a.attnum)
     FROM pg_attribute a WHERE a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped),
    (SELECT i.indkey::text FROM pg_index i WHERE i.indrelid = c.oid AND i.indisprimary),
    {set}.has_deferrable(c.oid),
    (SELECT jsonb_agg(jsonb_build_array(f.kind, f.name, f.is_valid, f.looks) ORDER BY f.kind, f.name)
     FROM {set}.fittings(c.oid) f))::text)
  FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.oid = rel);
END $$;

-- The same question as far as a session can answer it that looks at an old snapshot: what the catalogue's tables show
-- is as old as the snapshot, but a column that a statement names is looked for in the table as it is.
CREATE OR REPLACE FUNCTION {set}.looks_like(rel oid, name text, columns text[], types oid[]) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off AS $$
DECLARE
  found int;
  found_types oid[];
BEGIN
  IF rel::regclass::text <> name THEN
    RETURN false;
  END IF;
  EXECUTE format('SELECT (SELECT count(*) FROM jsonb_object_keys(to_jsonb(ROW((NULL::%1$s).*)))), ARRAY[%2$s]::oid[]', name,
    (SELECT string_agg(format('pg_typeof((NULL::%s).%I)::oid', name, c), ', ') FROM unnest(columns) c))
    INTO found, found_types;
  RETURN found = cardinality(columns) AND found_types = types;
EXCEPTION WHEN undefined_column OR undefined_table OR undefined_object OR invalid_schema_name THEN
  RETURN false;
END $$;

CREATE OR REPLACE FUNCTION {set}.sees_old_snapshot() RETURNS bool
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT current_setting('transaction_isolation') NOT IN ('read committed', 'read uncommitted')
$$;

-- A table and its partitions at any depth. Unlike pg_partition_tree() it takes no lock, so that nobody waits for one who
-- rewrites, truncates or drops a partition they have nothing to do with.
CREATE OR REPLACE FUNCTION {set}.partitions(rel oid) RETURNS TABLE (relid oid, level int)
LANGUAGE sql STABLE ROWS 10 SET search_path = pg_catalog, pg_temp SET jit = off AS $$
  WITH RECURSIVE tree (relid, level) AS (
    SELECT rel, 0
    UNION ALL
    SELECT i.inhrelid, t.level + 1 FROM tree t JOIN pg_inherits i ON i.inhparent = t.relid AND NOT i.inhdetachpending
    JOIN pg_class k ON k.oid = i.inhrelid AND k.relispartition
  )
  SELECT relid, level FROM tree
$$;

-- Whether a partitioned table has a partition that nobody has noted: should it go, its rows would go unseen.
CREATE OR REPLACE FUNCTION {set}.has_unknown_partition(rel oid) RETURNS bool
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
  SELECT EXISTS (SELECT FROM {set}.partitions(rel) t JOIN pg_class k ON k.oid = t.relid
    WHERE t.level > 0 AND k.relkind = 'r' AND NOT EXISTS (SELECT FROM {set}.captured c WHERE c.relid = t.relid))
$$;

CREATE OR REPLACE FUNCTION {set}.is_current(rel oid, built_for text, name text, columns text[], types oid[]) RETURNS bool
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF {set}.sees_old_snapshot() THEN
    RETURN {set}.looks_like(rel, name, columns, types);
  END IF;
  RETURN coalesce({set}.fingerprint(rel) = built_for AND NOT {set}.has_unknown_partition(rel), false);
END $$;

-- The arguments of is_current() for a table as it is, behind the first one.
CREATE OR REPLACE FUNCTION {set}.looks_of(rel oid, OUT name text, OUT columns text[], OUT types oid[])
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp SET quote_all_identifiers = off AS $$
  SELECT rel::regclass::text, coalesce(array_agg(attname::text ORDER BY attnum), '{{}}'),
    coalesce(array_agg(atttypid ORDER BY attnum), '{{}}')
  FROM pg_attribute WHERE attrelid = rel AND attnum > 0 AND NOT attisdropped
$$;

-- The topmost ancestor of a partition that is captured, or the table itself.
CREATE OR REPLACE FUNCTION {set}.captured_root(rel oid) RETURNS oid
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN coalesce((SELECT a.relid FROM pg_partition_ancestors(rel) WITH ORDINALITY a (relid, ord)
    WHERE EXISTS (SELECT FROM {set}.captured c WHERE c.relid = a.relid) ORDER BY a.ord DESC LIMIT 1), rel);
END $$;

-- How a table must be captured: by 'row', by 'statement', or as a 'partition' that goes with its root; '+marker' where
-- a constraint may be checked at commit, '+applied' where changes of apply processes are wanted. A row trigger costs a statement of one row less, and one of many rows more, so
-- it can be asked for; and sometimes it must be. A statement trigger fires after all row triggers, so another trigger's
-- writes would be logged before the change that caused them; it also sees the rows of tables that inherit; and that of
-- a partition does not fire for what is written through the root.
CREATE OR REPLACE FUNCTION {set}.capture_mode(rel oid, definition jsonb) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN CASE
    -- Row triggers on the root are cloned to its partitions; only TRUNCATE has to be watched on each of them.
    WHEN {set}.captured_root(rel) <> rel THEN 'partition'
    WHEN (definition ->> 'is_partitioned')::bool
      OR (SELECT k.relispartition FROM pg_class k WHERE k.oid = rel)
      OR rel IN (SELECT relid FROM {set}.by_row)
      OR EXISTS (SELECT FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
        WHERE rel IN (i.inhparent, i.inhrelid) AND NOT c.relispartition)
      OR EXISTS (SELECT FROM pg_trigger t
        WHERE t.tgrelid = rel AND NOT t.tgisinternal AND t.tgenabled <> 'D'
          AND t.tgtype & 1 = 1 AND t.tgtype & 66 = 0 AND NOT starts_with(t.tgname, 'R_penstock_')) THEN 'row'
    ELSE 'statement'
  END
  || CASE WHEN {set}.has_deferrable(rel) THEN '+marker' ELSE '' END
  || CASE WHEN {set}.captured_root(rel) IN (SELECT relid FROM {set}.applied) THEN '+applied' ELSE '' END;
END $$;

-- The triggers that a mode needs, by the ends of their names: by row or by statement; insert, update, delete, truncate.
-- And 'a', which notes that an apply process writes.
CREATE OR REPLACE FUNCTION {set}.kinds(mode text) RETURNS text[]
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE
    WHEN mode LIKE 'partition%' THEN '{{t}}'::text[]
    WHEN mode LIKE 'row%' THEN '{{ri,ru,rd,t}}'::text[]
    WHEN mode LIKE 'statement%' THEN '{{si,su,sd,t}}'::text[]
    ELSE '{{}}'::text[] END
  || CASE WHEN mode LIKE '%+applied' THEN '{{a}}'::text[] ELSE '{{}}'::text[] END
$$;

-- When a trigger fires, as pg_trigger says it: (O) not for apply processes, (A) for them, too, (R) for them alone.
CREATE OR REPLACE FUNCTION {set}.firing(mode text, kind text) RETURNS "char"
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN mode NOT LIKE '%+applied' THEN 'O' WHEN kind = 'a' THEN 'R' ELSE 'A' END::"char"
$$;

-- Their names hold the table's oid: a partition may have some of its own beside those it has from its root, and no
-- other set's names begin alike.
CREATE OR REPLACE FUNCTION {set}.trigger_name(rel oid, kind text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT format('R_%s_%s_%s', {name}, rel, kind) $$;

-- What a table's triggers of ours look like, those included that a partition has from its root: who alters one, or
-- switches it off and on again, leaves another transaction's id.
CREATE OR REPLACE FUNCTION {set}.stamp(rel oid) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN (SELECT coalesce(string_agg(concat_ws(' ', t.tgname, t.tgenabled, t.xmin), ', ' ORDER BY t.tgname), '')
  FROM pg_trigger t WHERE t.tgrelid = rel AND t.tgname ~ format('^R_%s_[0-9]+_[a-z]+$', {name}));
END $$;

-- Triggers of ours that the table's owner has given another name, which we may drop: with those that are made in their
-- place every change would be logged twice.
CREATE OR REPLACE FUNCTION {set}.renamed_triggers(rel oid) RETURNS SETOF name
LANGUAGE plpgsql STABLE ROWS 1 SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN QUERY SELECT t.tgname FROM pg_trigger t JOIN pg_proc p ON p.oid = t.tgfoid JOIN pg_class c ON c.oid = t.tgrelid
  WHERE t.tgrelid = rel AND t.tgparentid = 0 AND p.pronamespace = '{set}'::regnamespace
    AND t.tgname !~ format('^R_%s_[0-9]+_[a-z]+$', {name}) AND pg_has_role(c.relowner, 'USAGE');
END $$;

-- Whether the triggers that a mode needs are there, switched on, and nobody has touched them.
CREATE OR REPLACE FUNCTION {set}.has_triggers(rel oid, mode text) RETURNS bool
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET plan_cache_mode = force_generic_plan AS $$
BEGIN
  RETURN (SELECT count(*) FILTER (WHERE t.tgname IN (SELECT {set}.trigger_name(rel, kind) FROM unnest({set}.kinds(mode)) kind))
      = cardinality({set}.kinds(mode))
    -- A partition's triggers that are its root's fire when the root's do.
    AND coalesce(bool_and(CASE WHEN t.tgparentid <> 0 THEN t.tgenabled IN ('O', 'A')
      ELSE t.tgenabled = {set}.firing(mode, substring(t.tgname FROM '[a-z]+$')) END), true) AND NOT EXISTS (SELECT FROM {set}.renamed_triggers(rel))
    AND {set}.stamp(rel) = (SELECT i.stamp FROM {set}.installed i WHERE i.relid = rel ORDER BY i.at DESC LIMIT 1)
  FROM pg_trigger t WHERE t.tgrelid = rel AND t.tgname ~ format('^R_%s_[0-9]+_[a-z]+$', {name}));
END $$;

-- What of a definition capture depends on; the rest may change without it.
CREATE OR REPLACE FUNCTION {set}.essence(definition jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT definition - '{{uniques,exclusions,checks,foreign_keys,referenced_by,fires_triggers,has_row_security}}'::text[]
$$;

-- SQL that logs that changes of a table could not be captured: apply stops at it, and says so.
CREATE OR REPLACE FUNCTION {set}.gap(rel oid, reason text, condition text DEFAULT 'true') RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format('INSERT INTO {set}.log (relid, version, op, before) SELECT %s, 0, ''!'', %L WHERE %s',
    rel, jsonb_build_object('reason', reason), condition)
$$;

-- The version of a table as it is; a new one where its last is of another definition.
CREATE OR REPLACE FUNCTION {set}.version_now(rel oid, found_by_writer bool) RETURNS {set}.captured
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off {pinned} AS $$
DECLARE
  looks text := {set}.fingerprint(rel);
  result {set}.captured;
BEGIN
  IF found_by_writer THEN
    SELECT * INTO result FROM {set}.captured c WHERE c.relid = rel ORDER BY c.version DESC LIMIT 1;
  END IF;
  -- Not an earlier one that looked the same: what was altered back was altered.
  IF result IS NULL OR result.fingerprint <> looks THEN
    SELECT d.definition, {set}.capture_mode(rel, d.definition) INTO result.definition, result.mode
    FROM {set}.describe(ARRAY[rel], NOT found_by_writer) d;
    INSERT INTO {set}.captured (relid, definition, mode, root, fingerprint, is_built)
    VALUES (rel, result.definition, result.mode, {set}.captured_root(rel), looks, NOT found_by_writer)
    RETURNING * INTO result;
  END IF;
  RETURN result;
END $$;

-- Columns with those of the key first, so that a reader finds the key at the head of an image.
CREATE OR REPLACE FUNCTION {set}.image_columns(definition jsonb) RETURNS jsonb
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT coalesce(jsonb_agg(col ORDER BY array_position(k.names, col ->> 'name'), ord), '[]')
  FROM jsonb_array_elements(definition -> 'columns') WITH ORDINALITY c (col, ord),
    (SELECT ARRAY(SELECT jsonb_array_elements_text(definition #> '{{primary_key,columns}}')) AS names) k
  WHERE ord > 0
$$;

-- A name for the number of a row that is no column's.
CREATE OR REPLACE FUNCTION {set}.row_number_name(cols jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT {set}.quoted('penstock row' || repeat('_', n)) FROM generate_series(0, jsonb_array_length(cols)) n
  WHERE NOT EXISTS (SELECT FROM jsonb_array_elements(cols) c (col) WHERE col ->> 'name' = 'penstock row' || repeat('_', n))
  ORDER BY n LIMIT 1
$$;

-- The old and the new row of an update stand at the same place of the two transition tables, which are filled row by row
-- in the order of the work; that also tells which row became which when a key changes. A plan is kept for the session,
-- and a full join cannot become a nested loop, which would be quadratic.
CREATE OR REPLACE FUNCTION {set}.pairs(cols jsonb) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format($f$
      (SELECT *, pg_catalog.row_number() OVER () AS %1$s FROM o) o
      FULL JOIN (SELECT *, pg_catalog.row_number() OVER () AS %1$s FROM n) n
        ON o.%1$s OPERATOR(pg_catalog.=) n.%1$s ORDER BY o.%1$s$f$, {set}.row_number_name(cols))
$$;

-- The statement that logs what a trigger has seen, for a table that is not what its triggers were built for. A row's
-- new and old image are parameters, in this order, without the one that there is not.
CREATE OR REPLACE FUNCTION {set}.statement(kind text, c {set}.captured) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $body$
DECLARE
  cols jsonb := {set}.image_columns(c.definition);
  head text := 'INSERT INTO {set}.log (relid, version, op, before, after)';
  place text := format('%s, %s', c.relid, c.version);
BEGIN
  -- What the root's own triggers log need not be logged again.
  IF c.mode LIKE 'partition%' THEN
    RETURN 'SELECT 1';
  ELSIF kind LIKE 's_' AND c.mode LIKE 'row%' AND (SELECT relhassubclass FROM pg_class WHERE oid = c.relid) THEN
    -- The rows may be those of a table that inherits.
    RETURN {set}.gap(c.relid, 'tables that inherit were made after setup',
      format('EXISTS (SELECT FROM %s)', CASE kind WHEN 'si' THEN 'n' ELSE 'o' END));
  END IF;
  RETURN CASE kind
    WHEN 'ri' THEN format('%s VALUES (%s, ''I'', NULL, %s)', head, place, {set}.image(cols, '($1)'))
    WHEN 'rd' THEN format('%s VALUES (%s, ''D'', %s, NULL)', head, place, {set}.image(cols, '($1)'))
    WHEN 'ru' THEN format('%s VALUES (%s, ''U'', %s, %s)', head, place, {set}.image(cols, '($2)'),
      {set}.image(cols, '($1)', '($2)'))
    WHEN 'si' THEN format('%s SELECT %s, ''I'', NULL, %s FROM n', head, place, {set}.image(cols, 'n'))
    WHEN 'sd' THEN format('%s SELECT %s, ''D'', %s, NULL FROM o', head, place, {set}.image(cols, 'o'))
    WHEN 'su' THEN format('%s SELECT %s, ''U'', %s, %s FROM %s', head, place, {set}.image(cols, 'o'),
      {set}.image(cols, 'n', 'o'), {set}.pairs(cols))
  END;
END $body$;

-- The same for a version that some writer, or setup, has noted already; null where there is none yet, and where the
-- catalogue cannot be believed. Passes for immutable, like is_current(), so that it is asked for once.
CREATE OR REPLACE FUNCTION {set}.statement_now(kind text, rel oid) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  noted {set}.captured;
BEGIN
  IF {set}.sees_old_snapshot() OR {set}.has_unknown_partition(rel) THEN
    RETURN NULL;
  END IF;
  SELECT * INTO noted FROM {set}.captured c WHERE c.relid = rel ORDER BY c.version DESC LIMIT 1;
  RETURN CASE WHEN noted.fingerprint = {set}.fingerprint(rel) THEN {set}.statement(kind, noted) END;
END $$;

CREATE OR REPLACE FUNCTION {set}.make_statement(kind text, rel oid) RETURNS text
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp SET jit = off AS $$
DECLARE
  looks record := {set}.looks_of(rel);
BEGIN
  IF {set}.sees_old_snapshot() AND NOT {set}.looks_like(rel, looks.name, looks.columns, looks.types) THEN
    RETURN {set}.gap(rel, 'the table was altered after the transaction had taken its snapshot');
  END IF;
  INSERT INTO {set}.captured (relid, definition, mode, root, fingerprint, is_built)
  SELECT d.relid, d.definition, 'partition', rel, {set}.fingerprint(d.relid), false
  FROM {set}.describe(ARRAY(SELECT t.relid FROM {set}.partitions(rel) t JOIN pg_class k ON k.oid = t.relid
    WHERE t.level > 0 AND k.relkind = 'r' AND NOT EXISTS (SELECT FROM {set}.captured c WHERE c.relid = t.relid)), false) d;
  RETURN {set}.statement(kind, {set}.version_now(rel, true));
END $$;

-- Settings that a type's text depends on, and what the words of an expression mean.
CREATE OR REPLACE FUNCTION {set}.canonical() RETURNS TABLE (name text, value text)
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  VALUES ('datestyle', 'ISO'), ('intervalstyle', 'iso_8601'), ('timezone', 'UTC'), ('bytea_output', 'hex'),
    ('extra_float_digits', '1'), ('quote_all_identifiers', 'off'), ('xmlbinary', 'base64'), ('lc_monetary', 'C'),
    ('standard_conforming_strings', 'on'),
    ('search_path', 'pg_catalog, pg_temp')
$$;

-- For statements whose columns are not known when their trigger is made; returns what the settings were.
CREATE OR REPLACE FUNCTION {set}.speak_canonically() RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
  kept pg_catalog.text[];
BEGIN
  SELECT pg_catalog.array_agg(ARRAY[c.name, pg_catalog.current_setting(c.name)]) INTO kept FROM {set}.canonical() c;
  PERFORM pg_catalog.set_config(c.name, c.value, true) FROM {set}.canonical() c;
  RETURN kept;
END $$;
CREATE OR REPLACE FUNCTION {set}.speak_as_before(settings text[]) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  setting pg_catalog.text[];
BEGIN
  FOREACH setting SLICE 1 IN ARRAY settings LOOP
    PERFORM pg_catalog.set_config(setting[1], setting[2], true);
  END LOOP;
END $$;

-- SQL for whether rows may be so large that their images are more than a value can hold. What a type's text makes of its
-- bytes is not known, and they may be compressed; the way for large rows costs nothing beside such a row.
CREATE OR REPLACE FUNCTION {set}.is_large(cols jsonb, VARIADIC rows text[]) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT string_agg(format('GREATEST(%s) OPERATOR(pg_catalog.>) %s', sizes, most / greatest(n, 1)), ' OR ') FROM (
    SELECT most, string_agg(format('%s(%s.%s)', measure, r, {set}.quoted(name)), ', ') AS sizes, count(*) AS n
    FROM unnest(rows) r, (SELECT col ->> 'name' AS name, col ->> 'base_type' IN ('text', 'bytea', 'character varying') AS is_plain
          FROM jsonb_array_elements(cols) c (col)
          WHERE NOT (col ->> 'is_integer')::bool
            AND coalesce(substring(col ->> 'type' from '^(?:character varying|character|bit|bit varying)[(]([0-9]+)')::int, 10001) > 10000
            AND col ->> 'base_type' NOT IN ('boolean', 'numeric', 'real', 'double precision', 'money', 'date', 'interval', 'uuid',
              'inet', 'cidr', 'macaddr', 'macaddr8', 'pg_lsn', '"char"', 'name', 'point', 'box', 'circle', 'lseg', 'line')
            AND col ->> 'base_type' !~ '^time') c,
      LATERAL (SELECT CASE WHEN is_plain THEN 'pg_catalog.octet_length' ELSE 'pg_catalog.pg_column_size' END AS measure,
                      CASE WHEN is_plain THEN 16777216 ELSE 262144 END AS most) m
    GROUP BY most, measure) t
$$;

-- PL/pgSQL that logs the rows of a transition table, the first eight one by one and those behind them by `rest`, and
-- returns; it goes on where it logged nothing because they may be too large.
CREATE OR REPLACE FUNCTION {set}.log_statement(insert text, source text, small text, rest text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format($f$%1$s WHERE %3$s LIMIT 8;
    GET DIAGNOSTICS logged = ROW_COUNT;
    IF logged OPERATOR(pg_catalog.=) 8 THEN %4$s END IF;
    IF logged OPERATOR(pg_catalog.>) 0 OR NOT EXISTS (SELECT FROM %2$s) THEN
      RETURN NULL;
    END IF;$f$, insert, source, small, rest)
$$;

-- The body of one capture function; the kind tells which trigger it serves.
CREATE OR REPLACE FUNCTION {set}.capture_body(kind text, c {set}.captured) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp SET jit = off AS $body$
DECLARE
  cols jsonb := {set}.image_columns(c.definition);
  looks record := {set}.looks_of(c.relid);
  head text := 'INSERT INTO {set}.log (relid, version, op, before, after)';
  place text := format('%s, %s', c.relid, c.version);
  old_alias text := CASE WHEN kind LIKE 'r_' THEN 'OLD' ELSE 'o' END;
  new_alias text := CASE WHEN kind LIKE 'r_' THEN 'NEW' ELSE 'n' END;
  old_row text := {set}.image(cols, old_alias);
  new_row text := {set}.image(cols, new_alias);
  changed text := {set}.image(cols, new_alias, old_alias);
  -- By statement: whether no row of the transition tables is too large, as part of the statement that logs them, for each
  -- question asked by itself would cost a single row a tenth more.
  has_large bool := {set}.is_large(cols, 'x') IS NOT NULL;
  large text := CASE WHEN NOT has_large THEN NULL WHEN kind = 'ri' THEN {set}.is_large(cols, 'NEW')
    WHEN kind = 'rd' THEN {set}.is_large(cols, 'OLD') WHEN kind = 'ru' THEN {set}.is_large(cols, 'OLD', 'NEW') END;
  small_old text := CASE WHEN has_large THEN format('NOT EXISTS (SELECT FROM o WHERE %s)', {set}.is_large(cols, 'o'))
    ELSE 'true' END;
  small_new text := CASE WHEN has_large THEN format('NOT EXISTS (SELECT FROM n WHERE %s)', {set}.is_large(cols, 'n'))
    ELSE 'true' END;
  marker text := CASE WHEN c.mode LIKE '%+marker%' THEN {set}.mark() ELSE '' END;
  statement text;
BEGIN
  statement := CASE kind
    WHEN 'ri' THEN format('%s VALUES (%s, ''I'', NULL, %s);', head, place, new_row)
    WHEN 'ru' THEN format('%s VALUES (%s, ''U'', %s, %s);', head, place, old_row, changed)
    WHEN 'rd' THEN format('%s VALUES (%s, ''D'', %s, NULL);', head, place, old_row)
    -- To ask for the number of rows beforehand would cost a single row a fifth more.
    WHEN 'si' THEN {set}.log_statement(format('%s SELECT %s, ''I'', NULL, %s FROM n', head, place, new_row), 'n', small_new,
      {set}.in_lines(place, 'i', new_row, 'n OFFSET 8'))
    WHEN 'sd' THEN {set}.log_statement(format('%s SELECT %s, ''D'', %s, NULL FROM o', head, place, old_row), 'o', small_old,
      {set}.in_lines(place, 'd', old_row, 'o OFFSET 8'))
    -- One row needs no pairing.
    WHEN 'su' THEN format($f$%s SELECT %s, 'U', %s, %s FROM o, n
      WHERE NOT EXISTS (SELECT FROM n OFFSET 1) AND %s AND %s;
    GET DIAGNOSTICS logged = ROW_COUNT;
    IF logged OPERATOR(pg_catalog.>) 0 THEN
      RETURN NULL;
    ELSIF %s AND %s THEN
      %s
      RETURN NULL;
    END IF;$f$,
      head, place, old_row, changed, small_old, small_new, small_old, small_new, {set}.in_lines(place, 'u',
        format($f$pg_catalog.concat(%s, E'\t', %s)$f$, old_row, changed), {set}.pairs(cols)))
  END;
  IF large IS NOT NULL THEN
    -- Not in one expression with the question before it: PL/pgSQL looks for the columns of an expression first.
    statement := format($f$IF (%s) IS NOT TRUE THEN
      %s%s
      RETURN NULL;
    END IF;$f$, large, marker, statement);
  ELSE
    statement := format('%s%s%s', marker, statement, CASE WHEN kind LIKE 'r_' THEN ' RETURN NULL;' ELSE '' END);
  END IF;
  RETURN format($f$DECLARE
  logged pg_catalog.int8;
  settings pg_catalog.text[];
BEGIN
  IF {set}.is_current('%1$s'::pg_catalog.oid, %2$L, %3$L, %4$L, %5$L) THEN
    %6$s
  END IF;
  BEGIN
    %7$s
    settings := {set}.speak_canonically();
    EXECUTE coalesce({set}.statement_now('%8$s', '%1$s'::pg_catalog.oid), {set}.make_statement('%8$s', '%1$s'))%9$s;
    PERFORM {set}.speak_as_before(settings);
  -- The writer is not to fail because it cannot be told what was written.
  EXCEPTION WHEN OTHERS THEN
    INSERT INTO {set}.log (relid, version, op, before) VALUES (%1$s, 0, '!', pg_catalog.json_build_object(
      'reason', pg_catalog.concat('a change could not be put into words (SQLSTATE ', SQLSTATE, ')')));
  END;
  RETURN NULL;
END$f$, c.relid, c.fingerprint, looks.name, looks.columns, looks.types, statement, {set}.mark(), kind,
    CASE kind WHEN 'ri' THEN ' USING NEW' WHEN 'ru' THEN ' USING NEW, OLD' WHEN 'rd' THEN ' USING OLD' ELSE '' END);
END $body$;

-- PL/pgSQL that has the transaction draw its place when it commits. It may have drawn one already: SET CONSTRAINTS ALL
-- IMMEDIATE has deferred triggers fire at once. That it will draw one is noted in a setting, which goes with a savepoint:
-- to look into the table would have two serializable transactions depend on each other that have nothing in common.
CREATE OR REPLACE FUNCTION {set}.mark() RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format($f$IF coalesce(pg_catalog.current_setting('penstock.marked', true), '') OPERATOR(pg_catalog.<>) %1$s THEN
    INSERT INTO {set}.marker (xid) VALUES (pg_catalog.pg_current_xact_id()) ON CONFLICT (xid) DO UPDATE SET commit_seq = NULL;
    PERFORM pg_catalog.set_config('penstock.marked', %1$s, true);
  END IF; $f$, $n$pg_catalog.concat('{wake} ', pg_catalog.pg_current_xact_id())$n$)
$$;

-- PL/pgSQL that logs many changes of one statement, up to 64 in a row of the log, which halves what each one costs.
-- Images hold neither line feeds nor tabs. A long line ends its row, which so stays far below the largest value that
-- there can be.
CREATE OR REPLACE FUNCTION {set}.in_lines(place text, op text, line text, from_rows text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format($f$
    DECLARE
      line pg_catalog.text;
      lines pg_catalog.text[] := '{{}}';
    BEGIN
      FOR line IN SELECT %1$s FROM %2$s LOOP
        lines := pg_catalog.array_append(lines, line);
        IF pg_catalog.cardinality(lines) OPERATOR(pg_catalog.=) 64
          OR pg_catalog.octet_length(line) OPERATOR(pg_catalog.>) 4000 THEN
          %3$s
          lines := '{{}}';
        END IF;
      END LOOP;
      IF pg_catalog.cardinality(lines) OPERATOR(pg_catalog.>) 0 THEN
        %3$s
      END IF;
    END;
  $f$, line, from_rows, format(
    $f$INSERT INTO {set}.log (relid, version, op, before, changes)
            VALUES (%s, '%s', pg_catalog.array_to_string(lines, E'\n'), pg_catalog.cardinality(lines));$f$,
    place, op))
$$;

