//! Which memory collectives that are under way read and write.

use std::collections::VecDeque;
use std::ops::Range;

use crate::program::TensorId;

/// Memory of one collective.
#[derive(Debug)]
struct Flight<M> {
    ranges: Vec<Range<u64>>,
    /// Tensors, and where they lay when it began.
    tensors: Vec<(TensorId, u64)>,
    mark: M,
}

/// Collectives that were not waited for yet, in their order. `M` marks the end of one.
#[derive(Debug)]
pub(crate) struct Flights<M> {
    under_way: VecDeque<Flight<M>>,
    /// Marks that can be used again.
    spare: Vec<M>,
}

impl<M> Default for Flights<M> {
    fn default() -> Flights<M> {
        Flights {
            under_way: VecDeque::new(),
            spare: Vec::new(),
        }
    }
}

impl<M> Flights<M> {
    /// An unused mark.
    pub(super) fn spare(&mut self) -> Option<M> {
        self.spare.pop()
    }

    /// Takes down that a collective is under way, which ends at its mark.
    pub(super) fn begin(
        &mut self,
        ranges: Vec<Range<u64>>,
        tensors: Vec<(TensorId, u64)>,
        mark: M,
    ) {
        self.under_way.push_back(Flight {
            ranges,
            tensors,
            mark,
        });
    }

    /// Whether nothing is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.under_way.is_empty()
    }

    /// Has `wait` wait for the last collective that uses any of this memory, and so for all before it.
    pub(super) fn wait_for<E>(
        &mut self,
        memory: &[Range<u64>],
        wait: impl FnOnce(&M) -> Result<(), E>,
    ) -> Result<(), E> {
        let touches = |flight: &Flight<M>| {
            let mut both = flight
                .ranges
                .iter()
                .flat_map(|a| memory.iter().map(move |b| (a, b)));
            both.any(|(a, b)| a.start < b.end && b.start < a.end)
        };
        self.land(self.under_way.iter().rposition(touches), wait)
    }

    /// The same for memory of which only the start is known, and that it is some block's: it can be that of a tensor which
    /// does not lie where it did.
    pub(super) fn wait_for_gone<E>(
        &mut self,
        addresses: &[u64],
        wait: impl FnOnce(&M) -> Result<(), E>,
    ) -> Result<(), E> {
        let is_gone = |flight: &Flight<M>| {
            let mut tensors = flight.tensors.iter();
            tensors.any(|(id, address)| addresses.get(id.0 as usize) != Some(address))
        };
        self.land(self.under_way.iter().rposition(is_gone), wait)
    }

    /// Has `wait` wait for all of them.
    pub(super) fn wait_for_all<E>(
        &mut self,
        wait: impl FnOnce(&M) -> Result<(), E>,
    ) -> Result<(), E> {
        self.land(self.under_way.len().checked_sub(1), wait)
    }

    fn land<E>(
        &mut self,
        last: Option<usize>,
        wait: impl FnOnce(&M) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(last) = last else {
            return Ok(());
        };
        wait(&self.under_way[last].mark)?;
        let landed = self.under_way.drain(..=last);
        self.spare.extend(landed.map(|flight| flight.mark));
        Ok(())
    }
}

#[cfg(test)]
#[expect(
    clippy::single_range_in_vec_init,
    reason = "memory of one tensor is a list of one range"
)]
mod tests {
    use super::*;

    /// Three collectives, of bytes 0 to 10, 10 to 20 and 20 to 30.
    fn three() -> Flights<u32> {
        let mut flights = Flights::default();
        for (number, start) in (0..3).zip([0, 10, 20]) {
            let tensor = (TensorId(number), start);
            flights.begin(vec![start..start + 10], vec![tensor], number);
        }
        flights
    }

    /// The mark that was waited for.
    fn waited(flights: &mut Flights<u32>, memory: &[Range<u64>]) -> Option<u32> {
        let mut mark = None;
        let wait = |of: &u32| {
            mark = Some(*of);
            Ok::<(), ()>(())
        };
        flights.wait_for(memory, wait).unwrap();
        mark
    }

    #[test]
    fn the_last_that_uses_the_memory_is_waited_for_and_those_before_it_with_it() {
        let mut flights = three();

        assert_eq!(waited(&mut flights, &[30..40, 9..11]), Some(1));
        assert_eq!(waited(&mut flights, &[0..20]), None);
        assert_eq!(waited(&mut flights, &[29..30]), Some(2));
        assert!(flights.is_empty());
        let spare = std::iter::from_fn(|| flights.spare());
        assert_eq!(spare.count(), 3);
    }

    #[test]
    fn memory_that_only_touches_is_not_used() {
        let mut flights = three();

        assert_eq!(waited(&mut flights, &[30..31]), None);
        assert_eq!(waited(&mut flights, &[]), None);
    }

    #[test]
    fn a_tensor_that_moved_is_waited_for_where_only_a_start_is_known() {
        let mut flights = three();
        let mut mark = None;
        let mut wait = |of: &u32| {
            mark = Some(*of);
            Ok::<(), ()>(())
        };

        flights.wait_for_gone(&[0, 10, 20], &mut wait).unwrap();
        flights.wait_for_gone(&[0, 0, 20], &mut wait).unwrap();

        assert_eq!(mark, Some(1));
        assert_eq!(waited(&mut flights, &[20..21]), Some(2));
    }
}
