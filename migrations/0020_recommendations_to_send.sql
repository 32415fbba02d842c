-- Recommendations as they are sent, and what they are found by. A list reads the columns that can be filtered once, keeps
-- them in memory, and from then on only what is new; see src/store/recommendation/shelf.rs.

-- Over how many GPUs the fit was asked to train.
ALTER TABLE recommendation ADD COLUMN world_size INTEGER NOT NULL DEFAULT 1 CHECK (world_size >= 1);

UPDATE recommendation SET world_size = (
    SELECT max(1, CAST(coalesce(text ->> '$.training.parallel.world_size', text ->> '$.world_size', 1) AS INTEGER))
      FROM fit JOIN request ON digest = request_digest WHERE fit.id = recommendation.fit_id);

-- The JSON document, ready to send. NULL until it is written, which opening the database does: a migration that changes
-- what the document holds sets it to NULL again.
ALTER TABLE recommendation ADD COLUMN document TEXT CHECK (document IS NULL OR json_valid(document));

CREATE INDEX recommendation_without_document ON recommendation (id) WHERE document IS NULL;

-- Its place in the order in which rows were stored, whoever stored them; no number is given twice. PostgreSQL: an
-- identity column.
ALTER TABLE recommendation ADD COLUMN number INTEGER;

UPDATE recommendation SET number = rowid;

CREATE UNIQUE INDEX recommendation_by_number ON recommendation (number);

-- How many were ever stored, and how many of them are gone.
CREATE TABLE recommendation_count (
    id       INTEGER NOT NULL PRIMARY KEY CHECK (id = 1),
    inserted INTEGER NOT NULL,
    deleted  INTEGER NOT NULL
) STRICT;

INSERT INTO recommendation_count (id, inserted, deleted)
SELECT 1, coalesce(max(number), 0), 0 FROM recommendation;

CREATE TRIGGER recommendation_inserted AFTER INSERT ON recommendation BEGIN
    UPDATE recommendation_count SET inserted = inserted + 1;
    UPDATE recommendation SET number = (SELECT inserted FROM recommendation_count) WHERE id = NEW.id;
END;

CREATE TRIGGER recommendation_deleted AFTER DELETE ON recommendation BEGIN
    UPDATE recommendation_count SET deleted = deleted + 1;
END;

-- No query uses it any more.
DROP INDEX recommendation_of_model;
