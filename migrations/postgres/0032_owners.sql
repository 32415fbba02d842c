-- As migrations/0032_owners.sql, which says what the columns are for.
ALTER TABLE fit ADD COLUMN owner TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE search ADD COLUMN owner TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE learnt ADD COLUMN owner TEXT COLLATE "C" NOT NULL DEFAULT '';

CREATE TABLE teller (
    learnt BIGINT NOT NULL REFERENCES learnt (id) ON DELETE CASCADE,
    owner  TEXT COLLATE "C" NOT NULL,
    missed BIGINT NOT NULL CHECK (missed BETWEEN 0 AND 1000000),
    agreed BIGINT NOT NULL CHECK (agreed >= 0),
    PRIMARY KEY (learnt, owner)
);

-- Who was served last?
CREATE INDEX fit_of_owner ON fit (owner, started_at);
CREATE INDEX search_of_owner ON search (owner, state);
