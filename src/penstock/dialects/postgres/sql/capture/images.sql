-- Always quoted: PL/pgSQL has keywords of its own that quote_ident leaves bare.
CREATE OR REPLACE FUNCTION {set}.quoted(name text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$ SELECT '"' || replace(name, '"', '""') || '"' $$;

-- The images below are generated SQL that runs with its owner's rights under whatever search_path the writer has, since
-- setting one costs more than the rest of a call. So every name and operator in it is qualified, and what looks an
-- operator up by itself is not used: IS DISTINCT FROM, IN, BETWEEN, NULLIF, CASE with an operand, JOIN ... USING.

-- And a session compiles them anew for each statement, so that it is their length that a single row pays for.

-- SQL for one member of an image: arguments of concat(), which skips nulls.
CREATE OR REPLACE FUNCTION {set}.json_member(col jsonb, row_alias text, separator text, is_null_known bool) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format(CASE
      WHEN NOT (col ->> 'is_plain')::bool THEN $f$%5$L, coalesce(pg_catalog.to_json(%4$s), 'null'::pg_catalog.json)$f$
      WHEN is_null_known THEN $f$%3$L, %4$s, '"'$f$
      ELSE $f$CASE WHEN %1$s IS NULL THEN %2$L ELSE %3$L END, %4$s, CASE WHEN %1$s IS NOT NULL THEN '"' END$f$ END,
    field, head || 'null', head || '"',
    replace(CASE
      -- concat() makes the same text of it.
      WHEN col ->> 'to_text' = '{{}}::pg_catalog.text' AND (col ->> 'is_decimal' = 'true' OR col ->> 'is_integer' = 'true')
        THEN '{{}}' ELSE col ->> 'to_text' END, '{{}}', field), head)
  FROM (SELECT row_alias || '.' || {set}.quoted(col ->> 'name') AS field,
               separator || to_json(col ->> 'name')::text || ':' AS head) m
$$;

-- Whether a column can be relied on to hold a value. Should it have lost its NOT NULL unnoticed, its text is empty, which
-- no type takes but those left out here.
CREATE OR REPLACE FUNCTION {set}.has_value(col jsonb) RETURNS bool
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT NOT (col ->> 'is_nullable')::bool AND col ->> 'base_type' NOT IN ('bytea', 'bit', 'bit varying')
$$;

-- SQL for a member of an update's image: null when the column is in both rows the same to the byte.
CREATE OR REPLACE FUNCTION {set}.changed_member(col jsonb, row_alias text, old_alias text) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT format(CASE
      -- 1.0 and 1.00 are equal, yet the target must learn the difference. A row value of nulls passes for null. And of a
      -- type that somebody made, an enum too, a cast of its owner's can leave it open which = is meant.
      WHEN NOT (is_exact OR col ->> 'base_type' = 'numeric') OR NOT (col ->> 'is_key_usable')::bool
        OR NOT (col ->> 'is_builtin')::bool
        THEN 'CASE WHEN pg_catalog.record_image_ne(ROW(%1$s), ROW(%2$s)) THEN pg_catalog.concat(%5$s) END'
      ELSE 'CASE ' || CASE WHEN {set}.has_value(col) THEN ''
             ELSE 'WHEN %2$s IS NULL THEN CASE WHEN %1$s IS NOT NULL THEN %3$L END ' END
        || CASE WHEN is_text THEN 'WHEN %1$s COLLATE pg_catalog."C" OPERATOR(pg_catalog.=) %2$s COLLATE pg_catalog."C"'
             ELSE 'WHEN %1$s OPERATOR(pg_catalog.=) %2$s' END
        || CASE WHEN is_exact THEN ''
             ELSE ' AND coalesce(pg_catalog.scale(%1$s) OPERATOR(pg_catalog.=) pg_catalog.scale(%2$s), true)' END
        || ' THEN NULL ELSE pg_catalog.concat(%4$s) END'
    END, old_alias || '.' || name, row_alias || '.' || name, ',' || to_json(col ->> 'name')::text || ':null',
    {set}.json_member(col, row_alias, ',', true), {set}.json_member(col, row_alias, ',', false))
  FROM (SELECT {set}.quoted(col ->> 'name') AS name,
               -- Neither its length nor its collation is relied on: a session with an old snapshot cannot see them change.
               (col ->> 'is_exact')::bool AND col ->> 'base_type' <> 'numeric' AS is_exact,
               col ->> 'base_type' IN ('text', 'character varying', 'character', 'name') AS is_text) c
$$;

-- SQL for an image. With a second alias, only for the columns that differ between the two rows.
CREATE OR REPLACE FUNCTION {set}.image(columns jsonb, row_alias text, old_alias text DEFAULT NULL) RETURNS text
LANGUAGE sql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
  -- A function takes at most 100 arguments, and a member of a whole image is up to three.
  WITH member AS (
    SELECT ord, (ord - 1) / 30 AS chunk, CASE
      WHEN old_alias IS NOT NULL THEN {set}.changed_member(col, row_alias, old_alias)
      ELSE {set}.json_member(col, row_alias, CASE WHEN ord = 1 THEN '' ELSE ',' END, {set}.has_value(col)) END AS piece
    FROM jsonb_array_elements(columns) WITH ORDINALITY c (col, ord)
  ), chunk AS (
    SELECT chunk, string_agg(piece, ', ' ORDER BY ord) AS piece FROM member GROUP BY chunk
  ), whole AS (
    SELECT coalesce(CASE WHEN count(*) = 1 THEN min(piece)
      ELSE string_agg(format('pg_catalog.concat(%s)', piece), ', ' ORDER BY chunk) END, $f$''$f$) AS members FROM chunk
  )
  -- What changed is not known beforehand, so each member brings a comma, of which the first one goes.
  SELECT format(CASE WHEN old_alias IS NULL THEN $f$pg_catalog.concat('{{', %s, '}}')$f$
    ELSE $f$pg_catalog.concat('{{', pg_catalog.substr(pg_catalog.concat(%s), 2), '}}')$f$ END, members) FROM whole
$$;

