-- As migrations/0039_askers.sql.
CREATE TABLE asker (
    fit_id TEXT COLLATE "C" NOT NULL REFERENCES fit (id) ON DELETE CASCADE,
    owner  TEXT COLLATE "C" NOT NULL,
    PRIMARY KEY (fit_id, owner)
);

INSERT INTO asker (fit_id, owner) SELECT id, '' FROM fit WHERE shared AND state IN ('queued', 'running');
ALTER TABLE fit DROP COLUMN shared;
