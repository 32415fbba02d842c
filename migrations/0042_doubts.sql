-- What an answer keeps free by itself for each of its doubts, in millionths of the limit, as JSON; empty in rows of earlier versions, which teach
-- nothing of such doubts.
ALTER TABLE recommendation ADD COLUMN doubts TEXT NOT NULL DEFAULT '{}' CHECK (json_valid(doubts));
-- How often that was halved of answers with the same doubts: a list.
ALTER TABLE learnt ADD COLUMN halved TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(halved));
-- What the misses of a key ask for, by what answers they followed: a list; empty in rows of earlier versions.
ALTER TABLE teller ADD COLUMN misses TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(misses));
-- The outcomes of a key that agree, by the doubts of the answers that they followed: a list.
ALTER TABLE teller ADD COLUMN agreements TEXT NOT NULL DEFAULT '[]' CHECK (json_valid(agreements));
-- What an answer left free for its doubts began the headroom of others; what misses asked for stays: of keys, the second largest.
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
