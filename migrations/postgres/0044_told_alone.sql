-- The key that told alone of a model, whose room it takes; '' where several keys told, or none is needed.
UPDATE learnt SET owner = ''
 WHERE owner <> '' AND EXISTS (SELECT 1 FROM teller WHERE teller.learnt = learnt.id AND teller.owner <> learnt.owner
                                                      AND teller.owner NOT LIKE learnt.owner || '/%');
