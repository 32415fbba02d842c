-- As migrations/0040_worked.sql, which says what the column and the views are for.
ALTER TABLE fit ADD COLUMN worked_ms BIGINT NOT NULL DEFAULT 0;

CREATE VIEW asked AS
SELECT id, owner, priority, created_at, lane FROM fit WHERE state = 'queued'
UNION
SELECT fit.id, asker.owner, priority, created_at, lane FROM asker JOIN fit ON fit.id = asker.fit_id WHERE state = 'queued';

CREATE VIEW fit_here AS SELECT id, owner, state, lane FROM fit WHERE lane NOT LIKE 'agent %';
