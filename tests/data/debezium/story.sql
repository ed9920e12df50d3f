-- What the recorded connectors saw; `python -m tests.kafka.record` runs it and writes the files beside it.
-- Comments that begin with `--:` say what the recorder does: `tables` and `rows` come before the connectors start,
-- `transaction` begins one transaction, and a statement without one commits alone. Each statement changes one table,
-- the first that it names.

--: tables
CREATE EXTENSION citext;
CREATE EXTENSION hstore;
CREATE EXTENSION ltree;
CREATE TYPE public.mood AS ENUM ('sad', 'meh', 'ok', 'happy');
CREATE DOMAIN public.amount AS numeric(10, 2) CHECK (value >= 0);
CREATE DOMAIN public.words AS text;
CREATE TABLE public.numbers (
  id int PRIMARY KEY, si smallint, i int, bi bigint, o oid, r real, d double precision, n52 numeric(5, 2),
  n5m2 numeric(5, -2), n38 numeric(38, 0), wide numeric(60, 20), n numeric, m money, bo boolean, am public.amount,
  a int GENERATED ALWAYS AS (id * 2) STORED
);
CREATE TABLE public.texts (
  id bigint PRIMARY KEY, t text, v varchar(20), c char(5), b1 "char", nam name, ci citext, mo public.mood,
  wo public.words, u uuid, x xml, j json, jb jsonb, net inet, cid cidr, mac macaddr, mac8 macaddr8, lt ltree, ts tsvector,
  hs hstore, ir int4range, nr numrange, tzr tstzrange, dr daterange
);
CREATE TABLE public.bytes (id int PRIMARY KEY, by bytea, b1 bit(1), b9 bit(9), b33 bit(33), vb varbit, vb20 varbit(20));
CREATE TABLE public.times (
  id int PRIMARY KEY, d date, t time, t3 time(3), tz timetz, ts timestamp, ts3 timestamp(3), ts0 timestamp(0),
  tsz timestamptz, tsz3 timestamptz(3), iv interval
);
CREATE TABLE public.extremes (id int PRIMARY KEY, d date, ts timestamp, ts3 timestamp(3), tsz timestamptz, iv interval);
CREATE TABLE public.arrays (
  id int PRIMARY KEY, ia int[], ba bigint[], sa smallint[], ta text[], va varchar(5)[], na numeric(6, 2)[], fa double precision[],
  boa boolean[], da date[], tsa timestamp[], tza timestamptz[], ua uuid[], bya bytea[], ja jsonb[], mo public.mood[]
);
CREATE TABLE public.shapes (id int PRIMARY KEY, p point, l line, s lseg, bx box, pa path, po polygon, ci circle, after_all text);
CREATE TABLE public.customers (id int PRIMARY KEY, name text NOT NULL, email text UNIQUE);
CREATE TABLE public.orders (
  b text, a int, customer int NOT NULL REFERENCES public.customers, total numeric(10, 2), note text, PRIMARY KEY (a, b)
);
CREATE TABLE public.parts (id int PRIMARY KEY, parent int REFERENCES public.parts DEFERRABLE INITIALLY DEFERRED, t text);
CREATE TABLE public.filled (
  id int PRIMARY KEY, a int NOT NULL, s text NOT NULL, n numeric(8, 2) NOT NULL, dflt int NOT NULL DEFAULT 7, nd int DEFAULT 9,
  nt text DEFAULT 'said', ts timestamptz NOT NULL, bo boolean NOT NULL, dt date NOT NULL, u uuid NOT NULL, bb bytea NOT NULL,
  js jsonb NOT NULL
);
CREATE TABLE public.full_image (id int PRIMARY KEY, t text, n numeric, ts timestamp, big text);
ALTER TABLE public.full_image REPLICA IDENTITY FULL;
CREATE TABLE public.keyless (a int, b text, n numeric(6, 2));
ALTER TABLE public.keyless REPLICA IDENTITY FULL;
CREATE TABLE public.by_index (a int NOT NULL, b text NOT NULL, v text);
CREATE UNIQUE INDEX by_index_key ON public.by_index (b, a);
ALTER TABLE public.by_index REPLICA IDENTITY USING INDEX by_index_key;
CREATE TABLE public.nothing (id int PRIMARY KEY, v text);
ALTER TABLE public.nothing REPLICA IDENTITY NOTHING;
CREATE TABLE public.toasted (
  id int PRIMARY KEY, small int, t text, by bytea, j json, jb jsonb, x xml, ta text[], ia int[], la bigint[], da date[], ua uuid[], hs hstore,
  n numeric, vb varbit
);
CREATE TABLE public.toasted_full (id int PRIMARY KEY, small int, t text, by bytea);
ALTER TABLE public.toasted_full REPLICA IDENTITY FULL;
CREATE SCHEMA "Odd schema";
CREATE TABLE "Odd schema"."we ird.T-x" ("Key Col" int PRIMARY KEY, "sel""ect" text, "größe" text, "a.b" int);
CREATE TABLE public.evolving (id int PRIMARY KEY, a text, b int);
CREATE TABLE public.parted (id int, at date, t text, PRIMARY KEY (id, at)) PARTITION BY RANGE (at);
CREATE TABLE public.parted_2024 PARTITION OF public.parted FOR VALUES FROM ('2024-01-01') TO ('2025-01-01');
CREATE TABLE public.parted_2025 PARTITION OF public.parted FOR VALUES FROM ('2025-01-01') TO ('2026-01-01');

--: rows
INSERT INTO public.numbers VALUES (1, 1, 1, 1, 1, 1, 1, 1, 100, 1, 1, 1, 1, true, 1);
INSERT INTO public.customers VALUES (1, 'Anne', 'annek@noanswer.org'), (2, 'Ben', NULL), (3, 'Chloé 😀', 'c@example.com');
INSERT INTO public.orders VALUES ('x', 1, 1, 9.90, 'first'), ('y', 1, 1, NULL, NULL), ('x', 2, 2, 1000.00, '');
INSERT INTO public.keyless VALUES (1, 'same', 1.00), (1, 'same', 1.00), (NULL, NULL, NULL);
INSERT INTO public.full_image VALUES (1, 'one', 1.50, '2024-02-29 13:45:59.1', repeat('long ', 5));
INSERT INTO public.filled VALUES (1, 6, 'x', 1.50, 7, NULL, NULL, '2024-02-29 11:45:59.1+00', true, '2024-01-01', '12345678-1234-5678-1234-567812345678', '\x01', '{"a": 1}');
INSERT INTO public.times VALUES (1, '2024-02-29', '13:45:59.123456', '13:45:59.123', '13:45:59.123456+02', '2024-02-29 13:45:59.123456', '2024-02-29 13:45:59.12', '2024-02-29 13:45:59', '2024-02-29 13:45:59.1+02', '2024-02-29 13:45:59.12+02', '1 year 2 mons 3 days 04:05:06.78');
INSERT INTO public.arrays VALUES (1, '{1,2,NULL}', '{1}', '{1}', '{a,b}', '{a}', '{1.5}', '{1.5}', '{t,f}', '{2024-02-29}', '{"2024-02-29 13:45:59"}', '{"2024-02-29 13:45:59+00"}', '{12345678-1234-5678-1234-567812345678}', '{"\\x01"}', '{"{\"a\": 1}"}', '{ok}');
INSERT INTO public.nothing VALUES (1, 'one');
INSERT INTO public.by_index VALUES (1, 'one', 'v');
INSERT INTO "Odd schema"."we ird.T-x" VALUES (1, 'a', 'b', 1);

--: transaction every number type: usual values
INSERT INTO public.numbers VALUES (2, -32768, -2147483648, -9223372036854775808, 4294967295, -1.5, 0.1, -1.28, -12300, 12345678901234567890123456789012345678, 12345678901234567890123456789012345678.12345678901234567890, 3.10, -92233720368547758.08, false, 0.00);
INSERT INTO public.numbers VALUES (3, 32767, 2147483647, 9223372036854775807, 0, 3.4028235e38, 1.7976931348623157e308, 999.99, 9999900, -12345678901234567890123456789012345678, -0.00000000000000000001, 100.00, 92233720368547758.07, true, 99999999.99);
INSERT INTO public.numbers VALUES (4, 0, 0, 0, 2147483648, 1e-45, 4.9e-324, 0.00, 0, 0, 0, 0, 0, NULL, 0);
INSERT INTO public.numbers (id) VALUES (5);
--: transaction numbers that are none, and long ones
INSERT INTO public.numbers (id, r, d, n) VALUES (6, 'NaN', 'NaN', 'NaN');
INSERT INTO public.numbers (id, r, d, n) VALUES (7, 'Infinity', 'Infinity', 'Infinity');
INSERT INTO public.numbers (id, r, d, n) VALUES (8, '-Infinity', '-Infinity', '-Infinity');
INSERT INTO public.numbers (id, r, d, n) VALUES (9, '-0', '-0', 1e-30);
INSERT INTO public.numbers (id, r, d, n) VALUES (10, 1e7, 1e23, 12345678901234567890123456789012345678901234567890123456789012345678901234567890.000123456789);
INSERT INTO public.numbers (id, r, d, n) VALUES (11, 0.001, 1e7, 1000);
INSERT INTO public.numbers (id, r, d, n) VALUES (12, 9.99e-4, 9999999.0, 0.00001);
UPDATE public.numbers SET n = 1e100 WHERE id = 12;
UPDATE public.numbers SET i = 5, n52 = NULL, n = 10.50 WHERE id = 2;
DELETE FROM public.numbers WHERE id = 3;

--: transaction texts
INSERT INTO public.texts VALUES (1, 'plain', 'varchar', 'ab', 'x', 'a name', 'CiText', 'ok', 'words', '12345678-1234-5678-1234-567812345678', '<a b="c">d</a>', '{"b": null, "a" : 1}', '{"b": null, "a": 1}', '192.168.0.1', '10.0.0.0/8', '08:00:2b:01:02:03', '08:00:2b:01:02:03:04:05', 'Top.Science', 'a fat cat'::tsvector, 'a=>1, b=>NULL', '[1,5)', '[1.5,)', '["2024-01-01 00:00:00+00",)', '[2024-01-01,2024-02-01)');
INSERT INTO public.texts (id, t, v, c, j, jb, hs, ir, mo) VALUES (2, '', '', '', '[]', '{}', '', 'empty', 'sad');
INSERT INTO public.texts (id, t, v, ci, jb) VALUES (3, E'quote " back \\ slash / tab \t newline \n return \r bell \x07 del \x7f end', '😀 größe', '中文', '"text 😀 \" \\ \u0001"');
INSERT INTO public.texts (id, t, v) VALUES (4, '__debezium_unavailable_value', 'null');
INSERT INTO public.texts (id, jb, j) VALUES (5, '12345678901234567890.12345678901234567890', '{"n": 1.10, "big": 12345678901234567890123}');
INSERT INTO public.texts (id, net) VALUES (9223372036854775807, 'fe80::1/64');
INSERT INTO public.texts (id) VALUES (6);
UPDATE public.texts SET t = NULL, mo = 'happy', hs = 'x=>"a b"' WHERE id = 1;
DELETE FROM public.texts WHERE id = 2;
--: transaction bytes and bits
INSERT INTO public.bytes VALUES (1, '\xdeadbeef00', B'1', B'101010101', B'100000000000000000000000000000001', B'101', B'11111111000000001');
INSERT INTO public.bytes VALUES (2, '', B'0', B'000000000', B'000000000000000000000000000000001', B'', B'1');
INSERT INTO public.bytes (id) VALUES (3);
INSERT INTO public.bytes VALUES (4, '\x00fffe', B'1', B'111111111', B'111111111111111111111111111111111', B'0000000000000001', B'00000000000000000000');
UPDATE public.bytes SET by = '\x00', vb = B'1' WHERE id = 1;

--: transaction times
INSERT INTO public.times VALUES (2, '1970-01-01', '00:00:00', '00:00:00', '00:00:00+00', '1970-01-01 00:00:00', '1970-01-01 00:00:00', '1970-01-01 00:00:00', '1970-01-01 00:00:00+00', '1970-01-01 00:00:00+00', '0');
INSERT INTO public.times VALUES (3, '1969-12-31', '24:00:00', '24:00:00', '23:59:59.999999-12:30', '1969-12-31 23:59:59.999999', '1969-12-31 23:59:59.999', '1969-12-31 23:59:59', '1969-12-31 23:59:59.999999-05:30', '1969-12-31 23:59:59.999+00', '-1 days +02:03:04.000005');
INSERT INTO public.times VALUES (4, '2262-04-11', '23:59:59.000001', '23:59:59.9', '12:00:00+14', '2262-04-11 00:00:00', '2262-04-11 00:00:00', '2262-04-11 00:00:00', '2262-04-11 00:00:00+00', '2262-04-11 00:00:00+00', '-1 year 25:01:01');
INSERT INTO public.times VALUES (5, '1678-01-01', '12:00:00.1', '12:00:00.01', '12:00:00.1-00:45', '1678-01-01 00:00:00.5', '1678-01-01 00:00:00.5', '1678-01-01 00:00:00', '1678-01-01 00:00:00.5+00', '1678-01-01 00:00:00.05+00', '100 years 11 mons 400 days 99:59:59.999999');
INSERT INTO public.times (id) VALUES (6);
UPDATE public.times SET ts = '2024-03-10 02:30:00', tsz = '2024-03-31 02:30:00 Europe/Berlin' WHERE id = 1;
DELETE FROM public.times WHERE id = 2;
--: transaction times at the end of time, and far away
INSERT INTO public.extremes VALUES (1, 'infinity', 'infinity', 'infinity', 'infinity', '178000000 years');
INSERT INTO public.extremes VALUES (2, '-infinity', '-infinity', '-infinity', '-infinity', '-178000000 years');
INSERT INTO public.extremes VALUES (3, '0044-03-15 BC', '0044-03-15 12:00:00.5 BC', '0044-03-15 12:00:00.5 BC', '0044-03-15 12:00:00+00 BC', '-1 mons');
INSERT INTO public.extremes VALUES (4, '12345-06-07', '12345-06-07 08:09:10.111213', '12345-06-07 08:09:10.111', '12345-06-07 08:09:10.111213+00', '1 mon');
INSERT INTO public.extremes VALUES (5, '0001-01-01', '0001-01-01 00:00:00', '0001-01-01 00:00:00', '0001-01-01 00:00:00+00', '00:00:00.000001');
INSERT INTO public.extremes VALUES (6, '9999-12-31', '9999-12-31 23:59:59.999999', '9999-12-31 23:59:59.999', '9999-12-31 23:59:59.999999+00', '-00:00:00.000001');
INSERT INTO public.extremes VALUES (7, '1582-10-10', '1582-10-10 00:00:00', '1500-02-28 00:00:00', '1582-10-04 23:59:59+00', '1 day -1 us');

--: transaction arrays
INSERT INTO public.arrays VALUES (2, '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}', '{}');
INSERT INTO public.arrays (id) VALUES (3);
INSERT INTO public.arrays VALUES (4, '{NULL}', '{NULL,9223372036854775807}', '{-32768}', '{NULL,"NULL","","a \"q\" \\ b","{x}",😀}', '{"a,b"}', '{NULL,-9999.99,0}', '{NaN,Infinity,-0,1e300}', '{NULL,t}', '{NULL,1969-12-31}', '{"1969-12-31 23:59:59.999999",NULL}', '{"2024-02-29 13:45:59.123456+02"}', '{NULL}', '{"\\x",NULL}', '{NULL,"null","[1, 2]"}', '{NULL,sad,happy}');
UPDATE public.arrays SET ia = '{3}', ta = NULL WHERE id = 1;
--: shapes, of which only points have a form
INSERT INTO public.shapes VALUES (1, '(1.5,-2)', '{1,2,3}', '[(0,0),(1,1)]', '(1,1),(0,0)', '[(0,0),(1,1)]', '((0,0),(1,1))', '<(0,0),1>', 'here');

--: transaction several tables, children after their parents
INSERT INTO public.customers VALUES (4, 'Dora', 'd@example.com');
INSERT INTO public.orders VALUES ('x', 4, 4, 12.50, 'for Dora');
INSERT INTO public.orders VALUES ('y', 4, 4, 7.25, NULL);
UPDATE public.customers SET email = 'anne@example.com' WHERE id = 1;
DELETE FROM public.orders WHERE (a, b) = (1, 'y');
--: transaction many rows by one statement
INSERT INTO public.customers SELECT n, 'c' || n, NULL FROM generate_series(10, 14) n;
UPDATE public.customers SET name = name || '!' WHERE id >= 10;
DELETE FROM public.customers WHERE id > 12;
--: transaction changes of keys
UPDATE public.orders SET a = 9 WHERE (a, b) = (2, 'x');
UPDATE public.orders SET b = E'q" \\ \n 😀' WHERE (a, b) = (9, 'x');
UPDATE public.full_image SET id = 7, t = 'seven' WHERE id = 1;
UPDATE public.by_index SET b = 'two' WHERE a = 1;
--: transaction a parent gets another key, and its child follows
INSERT INTO public.parts VALUES (1, NULL, 'root');
INSERT INTO public.parts VALUES (2, 1, 'leaf');
UPDATE public.parts SET id = 3 WHERE id = 1;
UPDATE public.parts SET parent = 3 WHERE id = 2;
--: transaction one row, again and again
INSERT INTO public.customers VALUES (20, 'first', NULL);
UPDATE public.customers SET name = 'second' WHERE id = 20;
DELETE FROM public.customers WHERE id = 20;
INSERT INTO public.customers VALUES (20, 'third', NULL);
UPDATE public.customers SET id = 21 WHERE id = 20;
UPDATE public.customers SET id = 20 WHERE id = 21;
DELETE FROM public.customers WHERE id = 20;
--: transaction keyless rows
INSERT INTO public.keyless VALUES (2, 'x', 2.50);
UPDATE public.keyless SET n = 3.00 WHERE a = 2;
DELETE FROM public.keyless WHERE a IS NULL;
INSERT INTO public.keyless VALUES (1, 'same', 1.00);
--: transaction rows with and without an image before
UPDATE public.full_image SET t = NULL, n = 'NaN' WHERE id = 7;
DELETE FROM public.full_image WHERE id = 7;
UPDATE public.filled SET nd = NULL, s = 'y' WHERE id = 1;
UPDATE public.filled SET nd = 9, nt = NULL WHERE id = 1;
DELETE FROM public.filled WHERE id = 1;
UPDATE public.by_index SET v = NULL WHERE a = 1;
DELETE FROM public.by_index WHERE a = 1;
INSERT INTO public.nothing VALUES (3, 'three');

--: transaction values too long for a page
INSERT INTO public.toasted SELECT 1, 1, s, convert_to(s, 'UTF8'), to_json(s), to_jsonb(s), ('<a>' || s || '</a>')::xml, ARRAY[s], array_agg(v), array_agg(v::bigint * 10000000000), array_agg('2000-01-01'::date + v), array_agg(md5(v::text)::uuid), public.hstore('k', s), string_agg((v + 1000)::text, '')::numeric, s2::varbit FROM (SELECT string_agg(md5(n::text), '') AS s FROM generate_series(1, 90) n) x, (SELECT string_agg((n * n % 7 % 2)::text, '') AS s2 FROM generate_series(1, 20000) n) y, generate_series(1, 700) v GROUP BY s, s2;
INSERT INTO public.toasted_full SELECT 1, 1, s, convert_to(s, 'UTF8') FROM (SELECT string_agg(md5(n::text), '') AS s FROM generate_series(1, 90) n) x;
--: transaction and not changed
UPDATE public.toasted SET small = 2 WHERE id = 1;
UPDATE public.toasted SET t = 'short' WHERE id = 1;
UPDATE public.toasted_full SET small = 2 WHERE id = 1;
UPDATE public.toasted SET id = 2 WHERE id = 1;
UPDATE public.toasted_full SET id = 2 WHERE id = 1;
DELETE FROM public.toasted WHERE id = 2;
DELETE FROM public.toasted_full WHERE id = 2;

--: transaction names
INSERT INTO "Odd schema"."we ird.T-x" VALUES (2, 'x', 'y', 2);
UPDATE "Odd schema"."we ird.T-x" SET "sel""ect" = NULL WHERE "Key Col" = 1;
UPDATE "Odd schema"."we ird.T-x" SET "Key Col" = 3 WHERE "Key Col" = 2;
--: transaction a table between other rows is emptied
INSERT INTO public.customers VALUES (30, 'before', NULL);
INSERT INTO public.keyless VALUES (5, 'gone', NULL);
TRUNCATE public.keyless;
INSERT INTO public.keyless VALUES (6, 'stays', 6.00);
--: two tables are emptied by one statement
TRUNCATE public.texts, public.bytes;
--: transaction partitions
INSERT INTO public.parted VALUES (1, '2024-05-01', 'a');
UPDATE public.parted SET at = '2025-05-01' WHERE id = 1;

--: transaction before the table changes
INSERT INTO public.evolving VALUES (1, 'a', 1);
ALTER TABLE public.evolving ADD COLUMN c numeric(6, 2) DEFAULT 1.5;
INSERT INTO public.evolving VALUES (2, 'a', 2, 2.25);
--: transaction after it
ALTER TABLE public.evolving DROP COLUMN a;
ALTER TABLE public.evolving RENAME COLUMN b TO bb;
UPDATE public.evolving SET bb = 5 WHERE id = 1;
--: transaction a type changes
ALTER TABLE public.evolving ALTER COLUMN bb TYPE text;
INSERT INTO public.evolving VALUES (3, 'five', 3);

--: transaction a part is taken back
INSERT INTO public.customers VALUES (40, 'kept', NULL);
SAVEPOINT s;
INSERT INTO public.customers VALUES (41, 'taken back', NULL);
ROLLBACK TO s;
INSERT INTO public.customers VALUES (42, 'kept too', NULL);
--: transaction messages
SELECT pg_logical_emit_message(false, 'lone', 'outside any transaction');
SELECT pg_logical_emit_message(true, 'inside', 'an event that counts');
INSERT INTO public.customers VALUES (50, 'beside a message', NULL);
--: transaction the last
INSERT INTO public.customers VALUES (99, 'the last', NULL);
