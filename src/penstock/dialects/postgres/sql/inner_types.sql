-- The types that type t is made of: for CROSS JOIN LATERAL (...) inner_type (oid).
    SELECT t.typelem WHERE t.typcategory = 'A' AND t.typelem <> 0
    UNION ALL SELECT t.typbasetype WHERE t.typtype = 'd'
    UNION ALL SELECT a.atttypid FROM pg_attribute a
      WHERE t.typtype = 'c' AND a.attrelid = t.typrelid AND a.attnum > 0 AND NOT a.attisdropped
    UNION ALL SELECT r.rngsubtype FROM pg_range r WHERE r.rngtypid = t.oid
    UNION ALL SELECT r.rngtypid FROM pg_range r WHERE r.rngmultitypid = t.oid
