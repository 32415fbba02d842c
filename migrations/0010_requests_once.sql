-- A request is the same text for every fit and probe that asks it, however often it failed, was cancelled, or was answered by
-- older rules. It may be as long as 64 KiB, so it is stored once.
CREATE TABLE request (
    -- SHA-256 of the text; for requests of earlier versions the id of the first who asked.
    digest TEXT NOT NULL PRIMARY KEY,
    text   TEXT NOT NULL CHECK (json_valid(text))
) STRICT;

INSERT INTO request (digest, text)
SELECT min(id), request FROM (SELECT id, request FROM fit UNION ALL SELECT id, request FROM probe) GROUP BY request;

-- For this migration alone.
CREATE INDEX request_of_text ON request (text);

ALTER TABLE fit ADD COLUMN request_digest TEXT REFERENCES request (digest) DEFERRABLE INITIALLY DEFERRED;
UPDATE fit SET request_digest = (SELECT digest FROM request WHERE text = fit.request);
ALTER TABLE fit DROP COLUMN request;
CREATE INDEX fit_of_request ON fit (request_digest);

ALTER TABLE probe ADD COLUMN request_digest TEXT REFERENCES request (digest) DEFERRABLE INITIALLY DEFERRED;
UPDATE probe SET request_digest = (SELECT digest FROM request WHERE text = probe.request);
ALTER TABLE probe DROP COLUMN request;
CREATE INDEX probe_of_request ON probe (request_digest);

DROP INDEX request_of_text;

-- What ended long ago may be dropped: see `batchfit db prune`.
CREATE INDEX fit_of_end ON fit (finished_at) WHERE finished_at IS NOT NULL;
CREATE INDEX probe_of_age ON probe (created_at);
