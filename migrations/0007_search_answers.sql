-- What a search came to, once it is done: it is not found again each time somebody asks, and it stays when the recordings
-- that led to it are gone.
ALTER TABLE search ADD COLUMN recommendation TEXT CHECK (recommendation IS NULL OR json_valid(recommendation));
-- The earlier search whose answer it is.
ALTER TABLE search ADD COLUMN answered_by TEXT;
-- How many observations there were then: news open it again.
ALTER TABLE search ADD COLUMN answered_after INTEGER CHECK (answered_after >= 0);

-- Who was told the same recording of the same batch?
CREATE INDEX observation_by_recording ON observation (recorded, batch) WHERE recorded IS NOT NULL;
