//! The parameters of a unit: shards, and what is gathered from them.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use super::{COPY_IN, scratch};
use crate::eager::{Eager, Leaf, Tensor, TensorBody};
use crate::program::{Category, Collective, Kernel};
use crate::shape::{DType, Extent, Sizes, contiguous_strides, numel};
use batchfit_step::FullyShard;

/// Where in a step a unit is (`TrainingState` of `torch/distributed/fsdp/_fully_shard/_fsdp_common.py`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum Phase {
    #[default]
    Idle,
    PreBackward,
    PostBackward,
}

/// What `fully_shard` manages of one module.
#[derive(Debug)]
pub(super) struct Group {
    pub(super) label: Arc<str>,
    /// The place of its first parameter in the graph's list.
    pub(super) first: usize,
    pub(super) members: Vec<Member>,
    pub(super) phase: Cell<Phase>,
    /// Whether the members' full parameters are there.
    pub(super) is_unsharded: Cell<bool>,
    /// What was gathered and not yet taken apart.
    pub(super) gathered: RefCell<Option<TensorBody>>,
    /// When it ran forward: its places in the order of all that did.
    pub(super) ran: RefCell<Vec<usize>>,
}

/// A sharded parameter.
#[derive(Debug)]
pub(super) struct Member {
    /// All of it, when gathered.
    pub(super) full: Tensor,
    /// Its leaf while it is gathered, and that of the shard, if it is trained.
    pub(super) leaves: Option<[Rc<Leaf>; 2]>,
    /// This rank's rows, padded to as many as every rank has.
    pub(super) shard: TensorBody,
    /// Elements of a padded shard.
    pub(super) elements: u64,
    /// The shape of this rank's rows.
    pub(super) rows: Sizes,
    /// A gradient that is kept at full size for a later micro-step, in the type in which gradients are reduced.
    pub(super) accumulated: RefCell<Option<Tensor>>,
}

/// How a parameter is cut along its first dimension: rows of each rank, and of this one (`torch.chunk`).
pub(super) fn rows(length: u64, ranks: u64, rank: u64) -> (u64, u64) {
    let each = length.div_ceil(ranks);
    let before = each.saturating_mul(rank);
    (each, length.saturating_sub(before).min(each))
}

/// Elements of a row of a parameter of this shape.
pub(super) fn row_elements(shape: &[Extent]) -> u64 {
    numel(shape.get(1..).unwrap_or_default()).at(1)
}

/// Part of a row of elements, as another row.
fn part(of: &TensorBody, start: u64, elements: u64) -> TensorBody {
    strided(of, start, &[elements], &[1])
}

/// Elements of a row of them, under a shape and strides.
fn strided(of: &TensorBody, start: u64, shape: &[u64], strides: &[u64]) -> TensorBody {
    let sizes = |numbers: &[u64]| {
        numbers
            .iter()
            .copied()
            .map(Extent::fixed)
            .collect::<Sizes>()
    };
    let mut view = of.alias(sizes(shape), sizes(strides));
    view.offset = of.offset + Extent::fixed(start);
    view
}

impl Group {
    /// Gathers the shards of all ranks on the stream that copies them: into one buffer, a rank's shards behind the other's.
    pub(super) fn gather(&self, eager: &mut Eager, options: &FullyShard, rank: u64) {
        let is_alone = options.world_size == 1;
        if is_alone || self.is_unsharded.get() || self.gathered.borrow().is_some() {
            return;
        }
        let Some(first) = self.members.first() else {
            return;
        };
        let dtype = first.full.dtype;
        let elements: u64 = self.members.iter().map(|member| member.elements).sum();
        let whole = Extent::fixed(elements.saturating_mul(options.world_size));
        let output = eager.on_stream(COPY_IN, |eager| {
            eager.set_category(Category::Communication);
            eager.set_label(&self.label);
            let cast: Vec<TensorBody> = if options.cpu_offload {
                self.copies_of_host(eager, dtype)
            } else if self
                .members
                .iter()
                .any(|member| member.shard.dtype != dtype)
            {
                let flat = eager.empty(&[Extent::fixed(elements)], dtype);
                self.pack(eager, &flat);
                vec![flat]
            } else {
                Vec::new()
            };
            let output = eager.empty(&[whole], dtype);
            let own = part(&output, elements.saturating_mul(rank), elements);
            match cast.as_slice() {
                [flat] if !options.cpu_offload => eager.launch(Kernel::Copy, &[flat], &[&own]),
                _ => self.pack(eager, &own),
            }
            eager.launch(
                Kernel::Collective(Collective::AllGather),
                &[&own],
                &[&output],
            );
            for copy in cast.into_iter().rev() {
                drop(copy);
            }
            output
        });
        *self.gathered.borrow_mut() = Some(output);
    }

    /// Copies shards one behind the other.
    fn pack(&self, eager: &mut Eager, into: &TensorBody) {
        let mut start = 0;
        for member in &self.members {
            let place = part(into, start, member.elements);
            eager.launch(Kernel::Copy, &[&member.shard], &[&place]);
            start += member.elements;
        }
    }

    /// Copies of shards that are in the host's memory, each cast for itself.
    fn copies_of_host(&self, eager: &mut Eager, dtype: DType) -> Vec<TensorBody> {
        let mut copies = Vec::new();
        for member in &self.members {
            let count = [Extent::fixed(member.elements)];
            let copy = eager.empty(&count, member.shard.dtype);
            if copy.dtype == dtype {
                copies.push(copy);
            } else {
                copies.push(eager.empty(&count, dtype));
                drop(copy);
            }
        }
        copies
    }

    /// Takes apart what was gathered; gives the buffer, which is not needed any more.
    pub(super) fn take_apart(&self, eager: &mut Eager, options: &FullyShard) -> Option<TensorBody> {
        let output = self.gathered.borrow_mut().take()?;
        self.is_unsharded.set(true);
        eager.set_label(&self.label);
        let ranks = options.world_size;
        let all: u64 = self.members.iter().map(|member| member.elements).sum();
        for member in &self.members {
            member.full.storage.allocate();
        }
        let shards: Vec<u64> = self
            .members
            .iter()
            .map(|member| member.elements * member.full.dtype.size())
            .collect();
        let table = scratch::of_copy_out(&shards, ranks, eager.capability);
        let _table = eager.scratch(table);
        let mut start = 0;
        for member in &self.members {
            let shape = [ranks, member.elements];
            let from = strided(&output, start, &shape, &[all, 1]);
            let to = strided(&member.full, 0, &shape, &[member.elements, 1]);
            eager.launch(Kernel::Copy, &[&from], &[&to]);
            start += member.elements;
        }
        Some(output)
    }

    /// What one rank does, which has nothing to gather: each parameter is copied from its shard, cast first where it is cast.
    pub(super) fn copy_alone(&self, eager: &mut Eager) {
        if self.is_unsharded.replace(true) {
            return;
        }
        eager.set_label(&self.label);
        let mut before: Option<TensorBody> = None;
        for member in &self.members {
            let (shard, full) = (&member.shard, &member.full);
            if shard.dtype != full.dtype {
                let cast = eager.empty(&shard.shape, full.dtype);
                eager.launch(Kernel::Copy, &[shard], &[&cast]);
                before = Some(cast);
            }
            full.storage.allocate();
            let from = before.as_ref().unwrap_or(shard);
            let to = strided(full, 0, &[member.elements], &[1]);
            eager.launch(Kernel::Copy, &[from], &[&to]);
        }
    }

    /// Lets go of full parameters: their storages are emptied, even where they have owners.
    pub(super) fn reshard(&self) {
        if self.is_unsharded.replace(false) {
            for member in &self.members {
                member.full.storage.free();
            }
        }
    }

    /// The gradients that are to be reduced, with the members whose they are.
    pub(super) fn take_gradients(&self) -> Vec<(&Member, Tensor)> {
        let taken = |member: &'_ Member| {
            let [full, _] = member.leaves.as_ref()?;
            let kept = member.accumulated.borrow_mut().take();
            kept.or_else(|| full.grad.borrow_mut().take())
        };
        let members = self.members.iter();
        members
            .filter_map(|member| Some((member, taken(member)?)))
            .collect()
    }
}

impl Member {
    /// Copies a gradient to where each rank's rows of it are sent from: `start` elements behind the beginning of each rank's part,
    /// which has `all`.
    pub(super) fn spread(
        &self,
        eager: &mut Eager,
        gradient: &TensorBody,
        into: &TensorBody,
        [start, all]: [u64; 2],
    ) {
        let whole = gradient.numel().at(1);
        let (ranks, rest) = (whole / self.elements.max(1), whole % self.elements.max(1));
        if ranks > 0 {
            let shape = [ranks, self.elements];
            let from = strided(gradient, 0, &shape, &[self.elements, 1]);
            let to = strided(into, start, &shape, &[all, 1]);
            eager.launch(Kernel::Copy, &[&from], &[&to]);
        }
        if rest > 0 {
            let from = part(gradient, ranks * self.elements, rest);
            let to = part(into, ranks * all + start, rest);
            eager.launch(Kernel::Copy, &[&from], &[&to]);
        }
    }

    /// Whether some rank has fewer rows than others.
    pub(super) fn is_padded(&self, ranks: u64) -> bool {
        self.elements.saturating_mul(ranks) != self.full.numel().at(1)
    }

    /// This rank's rows in a row of elements.
    pub(super) fn own_rows(&self, of: &TensorBody, start: u64) -> TensorBody {
        let mut view = of.alias(self.rows.clone(), contiguous_strides(&self.rows));
        view.offset = of.offset + Extent::fixed(start);
        view
    }
}
