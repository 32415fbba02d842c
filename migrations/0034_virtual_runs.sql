-- What came of scripts on a virtual GPU, as `batchfit run` told it.
CREATE TABLE virtual_run (
    id                   TEXT    NOT NULL PRIMARY KEY,
    -- The beginning of it, for whoever reads lists; the answer has all.
    command              TEXT    NOT NULL,
    card                 TEXT    NOT NULL,
    gpus                 INTEGER NOT NULL CHECK (gpus >= 1),
    verdict              TEXT    NOT NULL CHECK (verdict IN ('fits', 'fits_with_retries', 'out_of_memory', 'failed')),
    certainty            TEXT    NOT NULL CHECK (certainty IN ('exact', 'chosen', 'estimated', 'doubtful')),
    limit_bytes          INTEGER NOT NULL,
    -- NULL where it was no PyTorch.
    peak_allocated_bytes INTEGER,
    peak_reserved_bytes  INTEGER NOT NULL,
    batchfit_version     TEXT    NOT NULL,
    -- The document of `batchfit run --json`.
    answer               TEXT    NOT NULL CHECK (json_valid(answer)),
    -- Each allocation and free, as a replay tells them, compressed; NULL where nobody kept them, or newer runs took their place.
    step                 BLOB,
    created_at           INTEGER NOT NULL
) STRICT;

CREATE INDEX virtual_run_by_age ON virtual_run (created_at);
