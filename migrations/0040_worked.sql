-- How long agents worked on a fit that gave it back or lost it, in milliseconds. It counts towards the time limit.
ALTER TABLE fit ADD COLUMN worked_ms INTEGER NOT NULL DEFAULT 0;

-- Which keys wait for which fit.
CREATE VIEW asked AS
SELECT id, owner, priority, created_at, lane FROM fit WHERE state = 'queued'
UNION
SELECT fit.id, asker.owner, priority, created_at, lane FROM asker JOIN fit ON fit.id = asker.fit_id WHERE state = 'queued';

-- Fits that are none of agents.
CREATE VIEW fit_here AS SELECT id, owner, state, lane FROM fit WHERE lane NOT LIKE 'agent %';
