-- As migrations/0042_doubts.sql.
ALTER TABLE recommendation ADD COLUMN doubts JSON NOT NULL DEFAULT '{}';
ALTER TABLE learnt ADD COLUMN halved JSON NOT NULL DEFAULT '[]';
ALTER TABLE teller ADD COLUMN misses JSON NOT NULL DEFAULT '[]';
ALTER TABLE teller ADD COLUMN agreements JSON NOT NULL DEFAULT '[]';
UPDATE learnt SET share = asked.share
  FROM (SELECT id, CASE WHEN missed < 5000 THEN 5000 ELSE missed END AS share
          FROM (SELECT learnt.id AS id,
                       CASE WHEN NOT EXISTS (SELECT 1 FROM teller WHERE teller.learnt = learnt.id) THEN raised
                            WHEN EXISTS (SELECT 1 FROM teller WHERE teller.learnt = learnt.id AND teller.owner = '')
                            THEN (SELECT max(missed) FROM teller WHERE teller.learnt = learnt.id)
                            ELSE coalesce((SELECT missed FROM teller WHERE teller.learnt = learnt.id ORDER BY missed DESC LIMIT 1 OFFSET 1), 0)
                       END AS missed
                  FROM learnt) AS told) AS asked
 WHERE asked.id = learnt.id AND NOT has_sunk AND learnt.share > asked.share;
