-- As migrations/0041_one_owner.sql.
DROP VIEW asked;
DROP TABLE asker;
DROP INDEX fit_in_flight;
CREATE UNIQUE INDEX fit_in_flight ON fit (fingerprint, owner) WHERE state IN ('queued', 'running');
