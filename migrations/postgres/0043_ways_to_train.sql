-- As migrations/0043_ways_to_train.sql.
ALTER TABLE recommendation ADD COLUMN training TEXT COLLATE "C" NOT NULL DEFAULT '';
ALTER TABLE teller ADD COLUMN asks BIGINT NOT NULL DEFAULT 0 CHECK (asks BETWEEN 0 AND 1000000);
UPDATE teller SET asks = missed;
