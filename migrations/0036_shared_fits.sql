-- Whether several keys have asked for a fit: then none of them alone may cancel it.
ALTER TABLE fit ADD COLUMN shared INTEGER NOT NULL DEFAULT 0 CHECK (shared IN (0, 1));
