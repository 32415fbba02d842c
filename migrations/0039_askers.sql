-- Which keys asked for a fit, where there were several: each may take back what it asked, and the last one ends it.
CREATE TABLE asker (
    fit_id TEXT NOT NULL REFERENCES fit (id) ON DELETE CASCADE,
    owner  TEXT NOT NULL,
    PRIMARY KEY (fit_id, owner)
) STRICT, WITHOUT ROWID;

-- Who else asked for these is not known, so nobody ends them alone.
INSERT INTO asker (fit_id, owner) SELECT id, '' FROM fit WHERE shared AND state IN ('queued', 'running');
ALTER TABLE fit DROP COLUMN shared;
