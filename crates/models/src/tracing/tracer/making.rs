//! In which order modules and parameters are made.

use super::{State, Tracer};
use crate::graph::GraphError;
use crate::tracing::prefixes;

impl Tracer {
    /// Says that a module is made now, though none of its parameters may be yet.
    pub(in crate::tracing) fn register(&self, path: &str) {
        let mut state = self.0.borrow_mut();
        let path = state.in_wrapper(path);
        state.register(&path);
    }

    /// Says that the module at this path cannot be made.
    pub(crate) fn fail_to_make(&self, path: &str, op: &'static str, problem: impl Into<String>) {
        self.register(path);
        let mut state = self.0.borrow_mut();
        let error = GraphError {
            op,
            module: state.builder.module_name(state.calls[0]).0.to_owned(),
            problem: problem.into(),
        };
        let path = state.in_wrapper(path);
        state.unmade.push((path, error));
    }

    /// Makes the modules that code calls, and does nothing else of it.
    pub(in crate::tracing) fn only_make(&self, code: impl FnOnce()) {
        let before = std::mem::replace(&mut self.0.borrow_mut().only_makes, true);
        code();
        self.0.borrow_mut().only_makes = before;
    }
}

/// Where something is among all that is made: first things that `__init__` makes, by their ranks, then constants. Whether each of the
/// modules that it is in is one, and when it was made: a module's own parameters come before those of modules in it.
pub(super) type Rank = (bool, Option<Vec<(bool, usize)>>);

impl State {
    pub(super) fn rank(&self, path: &str) -> Rank {
        let rank = |inner: &str| Some((inner.len() < path.len(), *self.made.get(inner)?));
        let ranks: Option<Vec<_>> = prefixes(path).map(rank).collect();
        (ranks.is_none(), ranks)
    }

    /// What did not fit first, as Python finds it: it makes all modules before it calls one.
    pub(super) fn check(&mut self) -> Result<(), GraphError> {
        let unmade = std::mem::take(&mut self.unmade).into_iter();
        let first = unmade.min_by_key(|(path, _)| self.rank(path));
        let error = first.map(|(_, error)| error).or(self.error.take());
        error.map_or(Ok(()), Err)
    }

    /// Notes the order in which something is made, and all modules that it is in.
    pub(super) fn register(&mut self, path: &str) {
        for path in prefixes(path) {
            if !self.made.contains_key(path) {
                self.made.insert(path.to_owned(), self.made.len());
            }
        }
    }
}
