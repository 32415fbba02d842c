-- Recommendations say how long a step takes on simulated cards too, how that is known, and which batch was looked for.

-- Milliseconds of a micro-step, and of all micro-steps of an optimizer step with its update.
ALTER TABLE recommendation ADD COLUMN step_ms REAL;
ALTER TABLE recommendation ADD COLUMN optimizer_step_ms REAL;
ALTER TABLE recommendation ADD COLUMN speed_from TEXT CHECK (speed_from IN ('measured', 'calibrated', 'estimated'));

-- Whether no variant beside it has both a larger micro-batch and more samples a second. PostgreSQL: a boolean.
ALTER TABLE recommendation ADD COLUMN pareto INTEGER CHECK (pareto IN (0, 1));

ALTER TABLE recommendation ADD COLUMN objective TEXT NOT NULL DEFAULT 'largest_batch'
    CHECK (objective IN ('largest_batch', 'throughput'));

-- Until now, only real GPUs had a speed. Of several micro-steps a part may have run: their sum is not known.
UPDATE recommendation SET step_ms = 1000.0 * micro_batch / samples_per_second, speed_from = 'measured'
 WHERE samples_per_second > 0 AND micro_batch > 0;
