//! What a program holds while it runs.

use std::collections::HashMap;

use super::plans::PlanCache;
use super::report::Evidence;
use super::run::Probe;
use crate::alloc::BlockId;
use crate::program::TensorId;
use crate::units::Bytes;

/// What launches on a GPU look up by [`TensorId`]; empty where nothing is launched.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) addresses: Vec<u64>,
    pub(super) sizes: Vec<Bytes>,
}

impl Tables {
    fn of(probe: &Probe<'_>) -> Tables {
        Tables {
            addresses: vec![0; probe.program.tensors.len()],
            sizes: probe.program.bytes_at(probe.batch),
        }
    }

    /// Notes where a tensor lies; nowhere once it was freed.
    pub(super) fn place(&mut self, id: TensorId, address: u64) {
        if let Some(place) = self.addresses.get_mut(id.0 as usize) {
            *place = address;
        }
    }
}

/// What a program holds while it runs at one batch.
#[derive(Debug)]
pub(super) struct RunState {
    /// By [`SizeId`](crate::program::SizeId).
    pub(super) sizes: Vec<Bytes>,
    pub(super) blocks: Vec<Option<BlockId>>,
    /// For each convolution workspace, the plan it was granted to.
    pub(super) plans: HashMap<TensorId, usize>,
    pub(super) tables: Tables,
    pub(super) cache: PlanCache,
}

impl RunState {
    /// Nothing yet.
    pub(super) fn by(probe: &Probe<'_>, evidence: Evidence) -> RunState {
        RunState {
            sizes: probe.program.sizes_at(probe.batch),
            blocks: vec![None; probe.program.tensors.len()],
            plans: HashMap::new(),
            tables: if evidence.is_real() {
                Tables::of(probe)
            } else {
                Tables::default()
            },
            cache: PlanCache::of(probe.program),
        }
    }
}
