-- Searches whose batches somebody else runs, and what was told of them. What comes next, and what the answer is, follows
-- from the observations in their order; `state` says what it came to when they were last looked at, but for `cancelled`,
-- which somebody asked for.
CREATE TABLE search (
    id         TEXT    NOT NULL PRIMARY KEY,
    state      TEXT    NOT NULL CHECK (state IN ('active', 'done', 'cancelled')),
    terms      TEXT    NOT NULL CHECK (json_valid(terms)),
    created_at INTEGER NOT NULL,
    -- When something was last told. Those that nobody tells anything are dropped some day.
    updated_at INTEGER NOT NULL
) STRICT;

CREATE INDEX search_by_age ON search (updated_at);

CREATE TABLE observation (
    search_id           TEXT    NOT NULL REFERENCES search (id) ON DELETE CASCADE,
    number              INTEGER NOT NULL CHECK (number >= 1),
    batch               INTEGER NOT NULL CHECK (batch >= 1),
    outcome             TEXT    NOT NULL CHECK (outcome IN ('fits', 'fits_with_retries', 'out_of_memory', 'crashed')),
    peak_reserved_bytes INTEGER          CHECK (peak_reserved_bytes >= 1),
    recorded            TEXT,
    created_at          INTEGER NOT NULL,
    PRIMARY KEY (search_id, number)
) STRICT;

-- The same one twice is one.
CREATE UNIQUE INDEX observation_once
    ON observation (search_id, batch, outcome, coalesce(peak_reserved_bytes, 0), coalesce(recorded, ''));

-- A search without an answer needs the recordings that it was told, as a fit that waits or runs needs its model.
DROP VIEW upload_in_use;
CREATE VIEW upload_in_use AS
SELECT upload_reference.digest AS digest
  FROM fit
  JOIN upload_reference ON upload_reference.what = 'fit' AND upload_reference.id = fit.id
 WHERE fit.state IN ('queued', 'running')
UNION ALL
SELECT upload_reference.digest AS digest
  FROM search
  JOIN upload_reference ON upload_reference.what = 'search' AND upload_reference.id = search.id
 WHERE search.state = 'active';

CREATE INDEX search_of_state ON search (state, id);
