//! Slots that all clients share: one key takes at most a quarter.

use crate::lock;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Each key may take one place in so many.
const PART_OF_A_KEY: usize = 4;

/// Cloning them shares them.
#[derive(Debug, Clone)]
pub(in crate::http) struct Slots {
    all: Arc<Semaphore>,
    each: usize,
    taken: Arc<Mutex<HashMap<String, usize>>>,
}

/// A place, until this is dropped.
#[derive(Debug)]
pub(in crate::http) struct Slot {
    _place: OwnedSemaphorePermit,
    of_key: Option<(Slots, String)>,
}

impl Slots {
    pub(in crate::http) fn new(many: usize) -> Slots {
        Slots {
            all: Arc::new(Semaphore::new(many)),
            each: (many / PART_OF_A_KEY).max(1),
            taken: Arc::default(),
        }
    }

    /// A slot for this key; the key is empty where none is needed, and then has no share.
    pub(in crate::http) fn take(&self, owner: &str) -> Option<Slot> {
        let place = Arc::clone(&self.all).try_acquire_owned().ok()?;
        let of_key = (!owner.is_empty()).then(|| (self.clone(), owner.to_owned()));
        if of_key.is_some() {
            let mut taken = lock(&self.taken);
            let own = taken.entry(owner.to_owned()).or_default();
            if *own >= self.each {
                return None;
            }
            *own += 1;
        }
        Some(Slot {
            _place: place,
            of_key,
        })
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let Some((places, owner)) = &self.of_key else {
            return;
        };
        let mut taken = lock(&places.taken);
        if let Some(own) = taken.get_mut(owner) {
            *own -= 1;
            if *own == 0 {
                taken.remove(owner);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::http::request::slots::*;

    #[test]
    fn a_key_takes_a_quarter_of_the_slots_and_open_services_have_no_share() {
        let places = Slots::new(8);
        let greedy: Vec<_> = (0..3).map(|_| places.take("greedy")).collect();
        let taken: Vec<bool> = greedy.iter().map(Option::is_some).collect();
        assert_eq!(taken, [true, true, false]);
        let modest = places.take("modest");
        assert!(modest.is_some());
        let rest: Vec<_> = (0..6).map_while(|_| places.take("")).collect();
        assert_eq!(rest.len(), 5);
        drop((greedy, rest));
        assert!(places.take("greedy").is_some());
    }
}
