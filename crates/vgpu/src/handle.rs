//! Handles: numbers that were given out, and what is remembered of them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A number that was not given out before: no address of a device or of the host, and not small either, for programs that sort handles from
/// the small numbers that CUDA has given a meaning (the default streams are 0, 1 and 2).
pub fn fresh() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0x0600_0000_0000);
    NEXT.fetch_add(64, Ordering::Relaxed)
}

/// What one thread at a time reads or changes, also after another ended in the midst of it.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    /// Of a value that nobody holds.
    pub const fn new(value: T) -> Self {
        Lock(Mutex::new(value))
    }

    /// Waits until nobody else holds it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What was given out of one kind.
#[derive(Debug, Default)]
pub struct Handles<T>(Lock<BTreeMap<u64, T>>);

impl<T> Handles<T> {
    /// None yet.
    pub const fn new() -> Self {
        Handles(Lock::new(BTreeMap::new()))
    }

    /// All of them, by their handles.
    pub fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, T>> {
        self.0.lock()
    }

    /// Gives one out.
    pub fn insert(&self, value: T) -> u64 {
        let handle = fresh();
        self.0.lock().insert(handle, value);
        handle
    }

    /// Reads or changes what is remembered; `None` for a handle that was never given out.
    pub fn with<R>(&self, handle: u64, act: impl FnOnce(&mut T) -> R) -> Option<R> {
        self.0.lock().get_mut(&handle).map(act)
    }

    /// Takes one back.
    pub fn remove(&self, handle: u64) -> Option<T> {
        self.0.lock().remove(&handle)
    }
}
