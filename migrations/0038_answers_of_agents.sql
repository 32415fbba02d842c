-- The API key of the agent that answered; empty where the service did. What follows such answers is that key's word.
ALTER TABLE fit ADD COLUMN answered_by TEXT NOT NULL DEFAULT '';
