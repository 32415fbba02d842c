-- What the outcomes of a key needed that agree in a row, in millionths of the limit.
ALTER TABLE teller ADD COLUMN needed INTEGER NOT NULL DEFAULT 0 CHECK (needed BETWEEN 0 AND 10000000);
UPDATE teller SET needed = (SELECT learnt.needed FROM learnt WHERE learnt.id = teller.learnt) WHERE agreed > 0;
