-- As migrations/0035_adamw_bnb_8bit.sql.
ALTER TABLE recommendation DROP CONSTRAINT recommendation_optimizer_check;
ALTER TABLE recommendation ADD CONSTRAINT recommendation_optimizer_check CHECK (optimizer IN
    ('sgd', 'sgd_momentum', 'adam', 'adamw', 'adamw_8bit', 'adamw_bnb_8bit', 'paged_adamw_8bit', 'adamw_8bit_torchao', 'adafactor',
     'adafactor_transformers', 'recorded'));
