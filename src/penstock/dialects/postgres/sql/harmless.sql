-- Those functions of `asked` (oid) of which it is not known that all they do is to compute: (oid, by_type). They could do
-- anything with the rights of whoever evaluates an expression that calls them, or, `by_type`, do so if they are handed a value
-- of a type that somebody has made casts for. Known are, of the server's own as initdb makes them, those that are immutable
-- and are handed values alone: no row, whose types could be anybody's, and no type, function or relation by its name or oid.
-- Stable ones are known where it is for the time zone or the currency that they are; the rest is listed. What others have
-- installed at the database computes as its owner says it does, if that is said, and it is handed values alone; or it is
-- told nothing, and its owner alone decides. Whether that owner is trusted is another question (called.sql).
doubtful AS (
  SELECT f.oid, s.is_own AND f.proname ~ ('^(textanycat|anytextcat|quote_literal|quote_nullable|to_jsonb?|row_to_json|array_to_json'
    || '|jsonb?_build_(array|object))$') AS by_type
  FROM pg_proc f JOIN pg_language l ON l.oid = f.prolang
  CROSS JOIN LATERAL (
    SELECT NOT EXISTS (SELECT FROM pg_type t WHERE t.oid = ANY (f.proargtypes::oid[] || f.prorettype)
        AND (t.typtype = 'p' AND t.typname !~ '^any.' OR t.typnamespace = 'pg_catalog'::regnamespace
          AND t.typname ~ '^_?reg(?!config|dictionary)')) AS of_values,
      f.oid < 16384 AND f.pronamespace = 'pg_catalog'::regnamespace AS is_own
  ) s
  WHERE f.oid = ANY (ARRAY(SELECT a.oid FROM asked a)) AND NOT CASE
    WHEN NOT s.is_own THEN f.pronargs = 0 OR f.provolatile = 'i' AND s.of_values
    WHEN f.prokind <> 'f' OR f.prosecdef OR f.proretset OR f.proowner <> 10 OR l.lanname NOT IN ('internal', 'sql') THEN false
    WHEN f.proname ~ ('^(clock_timestamp|timeofday|random|random_normal|gen_random_uuid|uuidv[47]|txid_current'
      || '|pg_current_xact_id|current_(user|database|schema|setting)|session_user|pg_backend_pid|inet_client_(addr|port)|version'
      || '|num_nulls|num_nonnulls|concat|concat_ws|format|array_to_string|pg_typeof|pg_column_size|enum_(first|last|range)'
      || '|to_char|to_number|xml|jsonb_path_\w+_tz|to_tsvector|(|plain|phrase|websearch_)to_tsquery|ts_match_t[qt]'
      || '|convert|convert_from|convert_to)$') THEN true
    WHEN f.provolatile = 's' THEN s.of_values AND f.proargtypes::oid[] || f.prorettype
      && ARRAY['date', 'time', 'timetz', 'timestamp', 'timestamptz', 'interval', 'money']::regtype[]::oid[]
    ELSE f.provolatile = 'i' AND s.of_values END
)
