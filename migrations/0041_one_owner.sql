-- A fit that waits or runs is one key's: what another asks at the same time, in the same words, is a fit of its own.
DROP VIEW asked;
DROP TABLE asker;
DROP INDEX fit_in_flight;
CREATE UNIQUE INDEX fit_in_flight ON fit (fingerprint, owner) WHERE state IN ('queued', 'running');
