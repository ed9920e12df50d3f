-- A shop that rents out films, with the names and the structure of the Pagila sample database; made-up rows.

CREATE TYPE mpaa_rating AS ENUM ('G', 'PG', 'PG-13', 'R', 'NC-17');
CREATE DOMAIN year AS integer CHECK (VALUE BETWEEN 1901 AND 2155);

CREATE FUNCTION last_updated() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  NEW.last_update = clock_timestamp();
  RETURN NEW;
END $$;

CREATE TABLE actor (
  actor_id serial PRIMARY KEY,
  first_name text NOT NULL,
  last_name text NOT NULL,
  last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE category (
  category_id serial PRIMARY KEY,
  name text NOT NULL,
  last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE language (
  language_id serial PRIMARY KEY,
  name char(20) NOT NULL,
  last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE country (
  country_id serial PRIMARY KEY,
  country text NOT NULL,
  last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE city (
  city_id serial PRIMARY KEY,
  city text NOT NULL,
  country_id integer NOT NULL REFERENCES country ON UPDATE CASCADE ON DELETE RESTRICT,
  last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE address (
  address_id serial PRIMARY KEY,
  address text NOT NULL,
  address2 text,
  district text NOT NULL,
  city_id integer NOT NULL REFERENCES city ON UPDATE CASCADE ON DELETE RESTRICT,
  postal_code text,
  phone text NOT NULL,
  last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE film (
  film_id serial PRIMARY KEY,
  title text NOT NULL,
  description text,
  release_year year,
  language_id integer NOT NULL REFERENCES language ON UPDATE CASCADE ON DELETE RESTRICT,
  original_language_id integer REFERENCES language ON UPDATE CASCADE ON DELETE RESTRICT,
  rental_duration smallint NOT NULL DEFAULT 3,
  rental_rate numeric(4, 2) NOT NULL DEFAULT 4.99,
  length smallint,
  replacement_cost numeric(5, 2) NOT NULL DEFAULT 19.99,
  rating mpaa_rating DEFAULT 'G',
  last_update timestamptz NOT NULL DEFAULT now(),
  special_features text[],
  fulltext tsvector NOT NULL
);
CREATE INDEX film_fulltext_idx ON film USING gist (fulltext);
CREATE INDEX idx_title ON film (title);
CREATE TABLE film_actor (
  actor_id integer NOT NULL REFERENCES actor ON UPDATE CASCADE ON DELETE RESTRICT,
  film_id integer NOT NULL REFERENCES film ON UPDATE CASCADE ON DELETE CASCADE,
  last_update timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (actor_id, film_id)
);
CREATE TABLE film_category (
  film_id integer NOT NULL REFERENCES film ON UPDATE CASCADE ON DELETE CASCADE,
  category_id integer NOT NULL REFERENCES category ON UPDATE CASCADE ON DELETE RESTRICT,
  last_update timestamptz NOT NULL DEFAULT now(),
  PRIMARY KEY (film_id, category_id)
);
-- A store has a manager, who works in a store: the two tables refer to each other.
CREATE TABLE store (
  store_id serial PRIMARY KEY,
  manager_staff_id integer NOT NULL UNIQUE,
  address_id integer NOT NULL REFERENCES address ON UPDATE CASCADE ON DELETE RESTRICT,
  last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE staff (
  staff_id serial PRIMARY KEY,
  first_name text NOT NULL,
  last_name text NOT NULL,
  address_id integer NOT NULL REFERENCES address ON UPDATE CASCADE ON DELETE RESTRICT,
  email text,
  store_id integer NOT NULL REFERENCES store,
  active boolean NOT NULL DEFAULT true,
  username text NOT NULL,
  password text,
  last_update timestamptz NOT NULL DEFAULT now(),
  picture bytea
);
ALTER TABLE store ADD FOREIGN KEY (manager_staff_id) REFERENCES staff DEFERRABLE INITIALLY DEFERRED;
CREATE TABLE customer (
  customer_id serial PRIMARY KEY,
  store_id integer NOT NULL REFERENCES store ON UPDATE CASCADE ON DELETE RESTRICT,
  first_name text NOT NULL,
  last_name text NOT NULL,
  email text,
  address_id integer NOT NULL REFERENCES address ON UPDATE CASCADE ON DELETE RESTRICT,
  activebool boolean NOT NULL DEFAULT true,
  create_date date NOT NULL DEFAULT current_date,
  last_update timestamptz DEFAULT now(),
  active integer
);
CREATE TABLE inventory (
  inventory_id serial PRIMARY KEY,
  film_id integer NOT NULL REFERENCES film ON UPDATE CASCADE ON DELETE CASCADE,
  store_id integer NOT NULL REFERENCES store ON UPDATE CASCADE ON DELETE RESTRICT,
  last_update timestamptz NOT NULL DEFAULT now()
);
CREATE TABLE rental (
  rental_id serial PRIMARY KEY,
  rental_date timestamptz NOT NULL,
  inventory_id integer NOT NULL REFERENCES inventory ON UPDATE CASCADE ON DELETE CASCADE,
  customer_id integer NOT NULL REFERENCES customer ON UPDATE CASCADE ON DELETE RESTRICT,
  return_date timestamptz,
  staff_id integer NOT NULL REFERENCES staff ON UPDATE CASCADE ON DELETE RESTRICT,
  last_update timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX idx_unq_rental ON rental (rental_date, inventory_id, customer_id);

CREATE TABLE payment (
  payment_id serial,
  customer_id integer NOT NULL,
  staff_id integer NOT NULL,
  rental_id integer NOT NULL,
  amount numeric(5, 2) NOT NULL,
  payment_date timestamptz NOT NULL,
  PRIMARY KEY (payment_date, payment_id)
) PARTITION BY RANGE (payment_date);

-- As in the sample, each month has its foreign keys, and the table as a whole has none.
CREATE FUNCTION add_payment_month(first date) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  month text := to_char(first, '"payment_p"YYYY_MM');
BEGIN
  EXECUTE format('CREATE TABLE %I PARTITION OF payment FOR VALUES FROM (%L) TO (%L)',
    month, first, first + interval '1 month');
  EXECUTE format('ALTER TABLE %I ADD FOREIGN KEY (customer_id) REFERENCES customer,
    ADD FOREIGN KEY (staff_id) REFERENCES staff, ADD FOREIGN KEY (rental_id) REFERENCES rental ON DELETE CASCADE', month);
END $$;
SELECT add_payment_month(make_date(2022, month, 1)) FROM generate_series(1, 6) AS month;

CREATE VIEW customer_list AS
  SELECT c.customer_id AS id, c.first_name || ' ' || c.last_name AS name, a.address, i.city, o.country
  FROM customer AS c JOIN address AS a USING (address_id) JOIN city AS i USING (city_id) JOIN country AS o USING (country_id);
CREATE MATERIALIZED VIEW rental_by_category AS
  SELECT c.name AS category, sum(p.amount) AS total_sales
  FROM payment AS p JOIN rental USING (rental_id) JOIN inventory USING (inventory_id)
    JOIN film_category USING (film_id) JOIN category AS c USING (category_id)
  GROUP BY c.name;
CREATE FUNCTION inventory_in_stock(p_inventory_id integer) RETURNS boolean LANGUAGE sql STABLE AS $$
  SELECT NOT EXISTS (SELECT FROM rental WHERE inventory_id = p_inventory_id AND return_date IS NULL)
$$;
CREATE AGGREGATE group_concat (text) (SFUNC = textcat, STYPE = text);

CREATE TRIGGER film_fulltext_trigger BEFORE INSERT OR UPDATE ON film
  FOR EACH ROW EXECUTE FUNCTION tsvector_update_trigger('fulltext', 'pg_catalog.english', 'title', 'description');
DO $$
DECLARE
  name text;
BEGIN
  FOREACH name IN ARRAY ARRAY['actor', 'address', 'category', 'city', 'country', 'customer', 'film', 'film_actor',
    'film_category', 'inventory', 'language', 'rental', 'staff', 'store'] LOOP
    EXECUTE format('CREATE TRIGGER last_updated BEFORE UPDATE ON %I FOR EACH ROW EXECUTE FUNCTION last_updated()', name);
  END LOOP;
END $$;

INSERT INTO language (name) VALUES ('English'), ('Deutsch'), ('日本語'), ('Français');
INSERT INTO category (name) VALUES ('Action'), ('Comedy'), ('Family'), ('Horror'), ('Music');
INSERT INTO country (country) SELECT 'Country ' || n FROM generate_series(1, 10) AS n;
INSERT INTO city (city, country_id) SELECT 'Město ' || n, 1 + n % 10 FROM generate_series(1, 40) AS n;
INSERT INTO address (address, address2, district, city_id, postal_code, phone)
  SELECT n || ' Mill Lane', CASE WHEN n % 3 = 0 THEN '' END, 'District ' || n % 7, 1 + n % 40, lpad(n::text, 5, '0'), '0' || n
  FROM generate_series(1, 220) AS n;
INSERT INTO actor (first_name, last_name) SELECT 'First ' || n, 'Last ' || n % 60 FROM generate_series(1, 120) AS n;
INSERT INTO film (title, description, release_year, language_id, original_language_id, rental_duration, rental_rate,
    length, replacement_cost, rating, special_features)
  SELECT 'Film ' || n, CASE WHEN n % 9 > 0 THEN 'A story of ' || n || ' robots, a baker and "the" cat''s boat' END,
    1950 + n % 70, 1 + n % 4, CASE WHEN n % 5 = 0 THEN 1 END, 3 + n % 5, 0.99 + n % 5, 60 + n % 120, 9.99 + n % 20,
    (enum_range(NULL::mpaa_rating))[1 + n % 5],
    CASE n % 4 WHEN 0 THEN ARRAY['Trailers', 'Deleted Scenes'] WHEN 1 THEN ARRAY['Behind, the "Scenes"', NULL]
      WHEN 2 THEN '{}'::text[] END
  FROM generate_series(1, 300) AS n;
INSERT INTO film_actor (actor_id, film_id)
  SELECT DISTINCT 1 + (f * 7 + k * 31) % 120, f FROM generate_series(1, 300) AS f, generate_series(1, 4) AS k;
INSERT INTO film_category (film_id, category_id) SELECT f, 1 + f % 5 FROM generate_series(1, 300) AS f;
BEGIN;
INSERT INTO store (manager_staff_id, address_id) VALUES (1, 1), (2, 2);
INSERT INTO staff (first_name, last_name, address_id, email, store_id, username, picture)
  VALUES ('Ada', 'North', 3, 'ada@shop.example', 1, 'ada', '\x89504e470d0a1a0a00ff'),
    ('Ben', 'South', 4, NULL, 2, 'ben', NULL), ('Cy', 'West', 5, NULL, 2, 'cy', '\x');
COMMIT;
INSERT INTO customer (store_id, first_name, last_name, email, address_id, create_date, active)
  SELECT 1 + n % 2, 'Given ' || n, 'Family ' || n, 'c' || n || '@mail.example', 6 + n, '2021-12-01'::date + n % 30, n % 2
  FROM generate_series(1, 200) AS n;
INSERT INTO inventory (film_id, store_id) SELECT 1 + n % 300, 1 + n % 2 FROM generate_series(1, 900) AS n;
INSERT INTO rental (rental_date, inventory_id, customer_id, return_date, staff_id)
  SELECT '2022-01-02 10:00Z'::timestamptz + n * interval '103 minutes', 1 + n % 900, 1 + n % 200,
    '2022-01-04 09:00Z'::timestamptz + n * interval '103 minutes', 1 + n % 3
  FROM generate_series(1, 1800) AS n;
INSERT INTO payment (customer_id, staff_id, rental_id, amount, payment_date)
  SELECT customer_id, staff_id, rental_id, 0.99 + rental_id % 8, return_date FROM rental;
REFRESH MATERIALIZED VIEW rental_by_category;
