-- How an answer's step trains: a digest of the request's words for it. Rows of `learnt` are of one way to train below one limit, and their
-- `model_digest` is the model's, this and the limit's binary logarithm, with slashes between; in rows of earlier versions the model's alone.
ALTER TABLE recommendation ADD COLUMN training TEXT NOT NULL DEFAULT '';
-- What a key's own misses ask for, for this way to train alone, in millionths of the limit; `missed` has those of others, too, until it agrees.
ALTER TABLE teller ADD COLUMN asks INTEGER NOT NULL DEFAULT 0 CHECK (asks BETWEEN 0 AND 1000000);
UPDATE teller SET asks = missed;
