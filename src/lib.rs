//! batchfit: the largest batch that fits a GPU safely.
