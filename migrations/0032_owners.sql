-- Whose fits and searches are, and who taught what: the API key, empty where none is needed.

-- Who asked; '*' once several did while it waited or ran.
ALTER TABLE fit ADD COLUMN owner TEXT NOT NULL DEFAULT '';
ALTER TABLE search ADD COLUMN owner TEXT NOT NULL DEFAULT '';
-- Who raised it most, or told first; '' where several keys raised it or none is needed.
ALTER TABLE learnt ADD COLUMN owner TEXT NOT NULL DEFAULT '';

-- What each key has told about one model on one card.
CREATE TABLE teller (
    learnt INTEGER NOT NULL REFERENCES learnt (id) ON DELETE CASCADE,
    owner  TEXT    NOT NULL,
    -- In millionths of the limit: what its misses ask for.
    missed INTEGER NOT NULL CHECK (missed BETWEEN 0 AND 1000000),
    -- How many of those that agree in a row are its.
    agreed INTEGER NOT NULL CHECK (agreed >= 0),
    PRIMARY KEY (learnt, owner)
) STRICT;

-- Who was served last?
CREATE INDEX fit_of_owner ON fit (owner, started_at);
CREATE INDEX search_of_owner ON search (owner, state);
