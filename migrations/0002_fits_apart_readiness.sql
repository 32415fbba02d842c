-- A fit that was running when its server ended without a word may have ended it. From then on it runs in a process of
-- its own, whose death is its own and nobody else's: 1 for such a fit.
ALTER TABLE fit ADD COLUMN apart INTEGER NOT NULL DEFAULT 0 CHECK (apart IN (0, 1));

-- One row, which /readyz writes: a database that can be read only is not ready.
CREATE TABLE readiness (
    id         INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    checked_at INTEGER NOT NULL
) STRICT;

INSERT INTO readiness (id, checked_at) VALUES (1, 0);
