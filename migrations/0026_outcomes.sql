-- What came of trainings that followed a recommendation, what was learnt from that about the headroom of later answers, and what
-- a recommendation was made with, so that one of another driver or batchfit can be told.

-- What trains, however it was described: the beginning of a digest. Empty for fits of earlier versions.
ALTER TABLE fit ADD COLUMN model_digest TEXT NOT NULL DEFAULT '';
-- What outcomes had taught about the headroom of its answer when it was asked, as JSON: a list.
ALTER TABLE fit ADD COLUMN taught TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(taught));

ALTER TABLE recommendation ADD COLUMN model_digest TEXT NOT NULL DEFAULT '';
-- How ranks train together; empty in rows of earlier versions.
ALTER TABLE recommendation ADD COLUMN strategy TEXT NOT NULL DEFAULT '' CHECK (strategy IN ('', 'none', 'ddp', 'zero1', 'fsdp2'));
ALTER TABLE recommendation ADD COLUMN driver TEXT;
ALTER TABLE recommendation ADD COLUMN cudnn TEXT;
ALTER TABLE recommendation ADD COLUMN pytorch TEXT NOT NULL DEFAULT '';
-- The digest of the rules by which batchfit answered; empty in rows of earlier versions.
ALTER TABLE recommendation ADD COLUMN rules TEXT NOT NULL DEFAULT '';
-- What of the limit had to stay free, in millionths of it, who says so, and how many outcomes taught it.
ALTER TABLE recommendation ADD COLUMN headroom_millionths INTEGER NOT NULL DEFAULT 0 CHECK (headroom_millionths BETWEEN 0 AND 1000000);
ALTER TABLE recommendation ADD COLUMN headroom_from TEXT NOT NULL DEFAULT 'default'
    CHECK (headroom_from IN ('default', 'learnt', 'others', 'asked'));
ALTER TABLE recommendation ADD COLUMN headroom_outcomes INTEGER NOT NULL DEFAULT 0 CHECK (headroom_outcomes >= 0);

-- One row for each training that somebody told of. Those of a recommendation that is dropped are dropped with it.
CREATE TABLE outcome (
    number              INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    recommendation      INTEGER NOT NULL REFERENCES recommendation (number) ON DELETE CASCADE,
    batch               INTEGER NOT NULL CHECK (batch >= 1),
    outcome             TEXT    NOT NULL CHECK (outcome IN ('fits', 'fits_with_retries', 'out_of_memory', 'crashed')),
    peak_reserved_bytes INTEGER          CHECK (peak_reserved_bytes >= 1),
    retries             INTEGER          CHECK (retries >= 0),
    steps               INTEGER          CHECK (steps >= 0),
    -- Where it ran, as it was told.
    environment         TEXT    NOT NULL CHECK (json_valid(environment)),
    -- Why nothing was learnt of it; NULL where something was.
    doubt               TEXT,
    -- What was left free of answers like this before it and after it, in millionths of the limit; NULL where nothing was learnt.
    headroom_before     INTEGER,
    headroom_after      INTEGER,
    -- The API key under which it was told, empty where none is needed, and the name that the client gave it.
    owner               TEXT    NOT NULL,
    key                 TEXT,
    -- SHA-256 of the body, where there is a name.
    body                TEXT,
    created_at          INTEGER NOT NULL
) STRICT;

CREATE INDEX outcome_of_recommendation ON outcome (recommendation, number);
CREATE UNIQUE INDEX outcome_by_key ON outcome (owner, key) WHERE key IS NOT NULL;

-- What was learnt about one model on one card.
CREATE TABLE learnt (
    id              INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    model_digest    TEXT    NOT NULL,
    -- As a person calls it, for whoever reads this.
    model           TEXT    NOT NULL,
    gpu             TEXT    NOT NULL,
    -- Where answers come from: a simulated card, recordings, or a GPU.
    source          TEXT    NOT NULL CHECK (source IN ('simulated', 'recorded', 'probed')),
    strategy        TEXT    NOT NULL,
    -- Empty for answers of a simulated card.
    driver          TEXT    NOT NULL,
    pytorch         TEXT    NOT NULL,
    -- In millionths of the limit: what is left free, what misses raised it to, and what those needed that agreed since it
    -- last changed.
    share           INTEGER NOT NULL CHECK (share BETWEEN 0 AND 1000000),
    raised          INTEGER NOT NULL CHECK (raised BETWEEN 0 AND 1000000),
    needed          INTEGER NOT NULL CHECK (needed BETWEEN 0 AND 10000000),
    has_sunk        INTEGER NOT NULL CHECK (has_sunk IN (0, 1)),
    agreed          INTEGER NOT NULL CHECK (agreed >= 0),
    outcomes        INTEGER NOT NULL CHECK (outcomes >= 0),
    misses          INTEGER NOT NULL CHECK (misses >= 0),
    -- Trainings that ran out of memory or had to retry.
    refused         INTEGER NOT NULL CHECK (refused >= 0),
    -- Peaks that were compared, the sum of how far they were above the prediction, in millionths of it, and the largest.
    peaks           INTEGER NOT NULL CHECK (peaks >= 0),
    error_sum       INTEGER NOT NULL,
    error_most      INTEGER NOT NULL,
    updated_at      INTEGER NOT NULL,
    -- Counts changes, over all rows: whoever has rows in memory reads those that are newer.
    changed         INTEGER NOT NULL,
    UNIQUE (model_digest, gpu, source, strategy, driver, pytorch)
) STRICT;

CREATE UNIQUE INDEX learnt_by_change ON learnt (changed);
CREATE INDEX learnt_by_age ON learnt (updated_at);

-- Outcomes of which nothing was learnt, since the database was made.
CREATE TABLE outcome_count (
    id       INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    doubted  INTEGER NOT NULL
) STRICT;

INSERT INTO outcome_count (id, doubted) VALUES (1, 0);
