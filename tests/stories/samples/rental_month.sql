-- The first day of a month that had no partition before.
BEGIN;
INSERT INTO payment (customer_id, staff_id, rental_id, amount, payment_date)
  SELECT customer_id, staff_id, rental_id, 2.50, '2022-07-01 00:00Z' FROM rental WHERE rental_id <= 50;
COMMIT;
BEGIN;
UPDATE payment SET amount = 2.75 WHERE payment_date >= '2022-07-01' AND customer_id < 20;
DELETE FROM payment WHERE payment_date >= '2022-07-01' AND customer_id > 40;
COMMIT;
