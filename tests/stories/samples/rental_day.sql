-- A day in the shop. Each block is a transaction, as the shop's programs commit them.

-- A customer rents three films, and pays for one.
BEGIN;
INSERT INTO rental (rental_date, inventory_id, customer_id, staff_id)
  SELECT '2022-06-20 12:00Z', id, 17, 1 FROM unnest(ARRAY[11, 12, 13]) AS id WHERE inventory_in_stock(id);
INSERT INTO payment (customer_id, staff_id, rental_id, amount, payment_date)
  SELECT customer_id, staff_id, rental_id, 4.99, '2022-06-20 12:05Z' FROM rental
  WHERE customer_id = 17 AND inventory_id = 11 AND return_date IS NULL;
COMMIT;

-- It brings two of them back.
BEGIN;
UPDATE rental SET return_date = '2022-06-22 18:30Z' WHERE customer_id = 17 AND inventory_id IN (11, 12) AND return_date IS NULL;
COMMIT;

-- A new customer, at a new address in a new city.
BEGIN;
WITH c AS (INSERT INTO city (city, country_id) VALUES ('Zürich', 3) RETURNING city_id),
  a AS (INSERT INTO address (address, district, city_id, phone) SELECT E'1 New\nRoad', 'North', city_id, '' FROM c RETURNING address_id)
INSERT INTO customer (store_id, first_name, last_name, address_id, active) SELECT 1, 'Zoë', 'O''Neil', address_id, 1 FROM a;
COMMIT;

-- Somebody corrects himself, and what was wrong is never seen.
BEGIN;
UPDATE customer SET email = 'wrong@mail.example' WHERE customer_id = 20;
SAVEPOINT s;
DELETE FROM payment WHERE customer_id = 21;
ROLLBACK TO s;
UPDATE customer SET email = 'right@mail.example' WHERE customer_id = 20;
COMMIT;

-- Horror is dearer from now on; and a film gets another rating, other features and another text to be found by.
BEGIN;
UPDATE film SET rental_rate = rental_rate + 1 FROM film_category AS c WHERE c.film_id = film.film_id AND c.category_id = 4;
UPDATE film SET rating = 'NC-17', special_features = special_features || ARRAY['Commentaries'],
  description = 'Now with dragons' WHERE film_id = 42;
COMMIT;

-- A film that nobody has ever rented is taken off, with its actors, its category and its copies.
BEGIN;
INSERT INTO film (title, language_id, release_year) VALUES ('Nobody''s film', 2, 1901);
INSERT INTO film_actor (actor_id, film_id) SELECT n, currval('film_film_id_seq') FROM generate_series(1, 5) AS n;
INSERT INTO inventory (film_id, store_id) VALUES (currval('film_film_id_seq'), 1), (currval('film_film_id_seq'), 2);
COMMIT;
BEGIN;
DELETE FROM film WHERE title = 'Nobody''s film';
COMMIT;

-- A film that was rented is taken off, too: its copies, their rentals and the payments go with it.
BEGIN;
DELETE FROM film WHERE film_id = 77;
COMMIT;

-- The two languages exchange their names; one gets another number, and its films follow.
BEGIN;
UPDATE language SET name = CASE language_id WHEN 2 THEN 'Français' ELSE 'Deutsch' END WHERE language_id IN (2, 4);
UPDATE language SET language_id = 40 WHERE language_id = 4;
COMMIT;

-- The managers exchange their stores, which no unique key would allow one by one.
BEGIN;
UPDATE store SET manager_staff_id = 3 WHERE store_id = 1;
UPDATE store SET manager_staff_id = 1 WHERE store_id = 2;
UPDATE store SET manager_staff_id = 2 WHERE store_id = 1;
UPDATE staff SET store_id = 3 - store_id WHERE staff_id IN (1, 2);
COMMIT;

-- Two payments were booked in the wrong month: they move to another partition.
BEGIN;
UPDATE payment SET payment_date = payment_date + interval '1 month' WHERE payment_id IN (5, 6);
COMMIT;

-- The first month is archived elsewhere.
BEGIN;
TRUNCATE payment_p2022_01;
COMMIT;

-- Everybody pays a day's fee, and then the report is made anew.
BEGIN;
INSERT INTO payment (customer_id, staff_id, rental_id, amount, payment_date)
  SELECT customer_id, 1, max(rental_id), 0.01, '2022-06-30 23:59:59.999999Z' FROM rental GROUP BY customer_id;
REFRESH MATERIALIZED VIEW rental_by_category;
COMMIT;
