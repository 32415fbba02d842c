//! The file or server itself: who owns it, what is copied, dropped and counted.

pub(crate) mod copy;
pub(crate) mod maintenance;
#[cfg(test)]
pub(crate) mod migrated;
pub(crate) mod ownership;
pub(crate) mod row_counts;
#[cfg(test)]
pub(crate) mod test_database;
