-- Who works on a fit that runs, and until when it is theirs: they say again and again that they are there, and a fit whose
-- holder has said nothing for too long goes back into the queue. In ended fits: who worked on them last.
ALTER TABLE fit ADD COLUMN holder TEXT;
ALTER TABLE fit ADD COLUMN lease_until INTEGER;
