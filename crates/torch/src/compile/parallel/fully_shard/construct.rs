//! `fully_shard` on each unit, then on the model: parameters become shards.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use super::Sharded;
use super::group::{Group, Member, Phase, row_elements, rows};
use super::units::{self, Unit, unit_paths};
use crate::compile::construction::{Constructed, initial};
use crate::compile::optimizer::{Trained, whole_moments};
use crate::compile::parallel::Wrapper;
use crate::eager::{Eager, History, Leaf, Tensor, TensorBody};
use crate::graph::{Graph, ParameterKind, ValueId, positions};
use crate::program::{Category, Kernel};
use crate::shape::{DType, Extent, Sizes, contiguous_strides};
use batchfit_step::{FullyShard, Variant};

/// The model as its units are made.
struct Model<'a> {
    graph: &'a Graph,
    variant: &'a Variant,
    options: &'a FullyShard,
    rank: u64,
    /// Below what the values of a buffer have to be.
    bounds: BTreeMap<ValueId, u64>,
    /// Parameters and buffers, as operations read them.
    tensors: BTreeMap<ValueId, Tensor>,
    /// What the optimizer is given, by places in the graph's list.
    trained: BTreeMap<usize, Trained>,
}

impl Sharded {
    /// Shards a model that is in the host's memory.
    pub(in crate::compile) fn construct(
        eager: &mut Eager,
        graph: &Arc<Graph>,
        variant: &Variant,
        options: &FullyShard,
    ) -> Constructed {
        let rank = eager.rank;
        let units = units::units(graph, &unit_paths(graph, options));
        let mut model = Model {
            graph,
            variant,
            options,
            rank,
            bounds: positions(graph).into_iter().collect(),
            tensors: BTreeMap::new(),
            trained: BTreeMap::new(),
        };
        let groups = units.iter().map(|unit| model.shard(eager, unit)).collect();
        let trained: Vec<Trained> = model.trained.into_values().collect();
        // What this rank has no rows of, its optimizer has nothing to do with.
        let has_rows = |place: &usize| trained[*place].tensor.numel() != Extent::ZERO;
        let mine = if options.cpu_offload {
            Vec::new()
        } else {
            (0..trained.len()).filter(has_rows).collect()
        };
        let sharded = Rc::new(Sharded {
            options: options.clone(),
            rank,
            calls: units::calls(graph, &units),
            groups,
            reduces: Cell::new(true),
            held: RefCell::default(),
            reduced: RefCell::default(),
            ran: RefCell::default(),
        });
        Constructed {
            tensors: model.tensors,
            trained,
            wrapper: Wrapper::Sharded(sharded),
            mine,
            partition: Vec::new(),
        }
    }
}

impl Model<'_> {
    /// Moves the parameters and buffers of a unit to the device, cuts the parameters, and lets go of them.
    fn shard(&mut self, eager: &mut Eager, unit: &Unit) -> Group {
        let mut whole: BTreeMap<usize, TensorBody> = BTreeMap::new();
        for index in &unit.parameters {
            whole.insert(*index, self.moved(eager, *index));
        }
        for index in &unit.buffers {
            let buffer = self.moved(eager, *index);
            let value = self.graph.parameters[*index].value;
            self.tensors.insert(value, Rc::new(buffer));
        }
        let members: Vec<Member> = unit
            .parameters
            .iter()
            .map(|index| self.cut(eager, *index, &whole[index]))
            .collect();
        // In registration order.
        for (_, parameter) in whole {
            drop(parameter);
        }
        let name = if unit.path.is_empty() {
            "FSDP2"
        } else {
            &unit.path
        };
        Group {
            label: Arc::from(format!("{name} fully_shard")),
            first: unit.parameters.iter().min().copied().unwrap_or(usize::MAX),
            members,
            phase: Cell::new(Phase::Idle),
            is_unsharded: Cell::new(false),
            gathered: RefCell::default(),
            ran: RefCell::default(),
        }
    }

    /// A parameter or buffer on the device.
    fn moved(&self, eager: &mut Eager, index: usize) -> TensorBody {
        let parameter = &self.graph.parameters[index];
        let value = self.graph.value(parameter.value);
        eager.set_category(Category::Parameters);
        eager.set_label(&Arc::from(parameter.path.as_str()));
        let tensor = eager.empty(&value.shape, self.stored(index));
        let bound = self.bounds.get(&parameter.value).copied();
        eager.launch(initial(self.graph, parameter, bound), &[], &[&tensor]);
        tensor
    }

    fn stored(&self, index: usize) -> DType {
        let value = self.graph.value(self.graph.parameters[index].value);
        crate::compile::stored(self.variant, value.dtype)
    }

    /// This rank's rows of a parameter, and what all of it will be gathered to.
    fn cut(&mut self, eager: &mut Eager, index: usize, whole: &TensorBody) -> Member {
        let parameter = &self.graph.parameters[index];
        let path: Arc<str> = Arc::from(parameter.path.as_str());
        let ranks = self.options.world_size;
        let length = whole.shape.first().map_or(1, |length| length.at(1));
        let (each, own) = rows(length, ranks, self.rank);
        let row = row_elements(&whole.shape);
        let (elements, own_elements) = (each * row, own * row);
        eager.set_label(&path);
        let mut shape: Sizes = whole.shape.clone();
        if let Some(first) = shape.first_mut() {
            *first = Extent::fixed(own);
        }
        let stored = whole.dtype;
        let shard = eager.declare(elements, stored);
        shard.storage.allocate();
        if elements > own_elements {
            eager.launch(Kernel::Fill(0.0), &[], &[&shard]);
        }
        if own > 0 {
            let count = Sizes::from(vec![Extent::fixed(own_elements)]);
            let strides = Sizes::from(vec![Extent::ONE]);
            let mut from = whole.alias(count.clone(), strides.clone());
            from.offset = Extent::fixed(each * row * self.rank);
            eager.launch(Kernel::Copy, &[&from], &[&shard.alias(count, strides)]);
        }
        if self.options.cpu_offload {
            shard.storage.free();
            // `_init_sharded_param` pins the padded rows; their gradient and the optimizer's moments are made beside them.
            let is_trained = parameter.kind == ParameterKind::Trained;
            let beside = if is_trained {
                1 + whole_moments(self.variant.optimizer)
            } else {
                0
            };
            let rows = elements + beside * own_elements;
            eager.recorder().keep_on_host(rows * stored.size());
        }
        let dtype = self.options.mixed_precision.param_dtype.unwrap_or(stored);
        let gathered = eager.declare(elements.saturating_mul(ranks), dtype);
        let strides: Sizes = contiguous_strides(&whole.shape).into();
        let mut full = gathered.alias(whole.shape.clone(), strides.clone());
        let leaves = (parameter.kind == ParameterKind::Trained).then(|| {
            let leaf = |strides: Sizes| {
                Rc::new(Leaf {
                    index,
                    path: Arc::clone(&path),
                    strides,
                    grad: None.into(),
                })
            };
            [leaf(strides), leaf(contiguous_strides(&shape).into())]
        });
        if let Some([of_full, of_shard]) = &leaves {
            full.history = Some(History::Leaf(Rc::clone(of_full))).into();
            let mine = shard.alias(shape.clone(), contiguous_strides(&shape));
            let trained = Trained::new(Rc::clone(of_shard), Rc::new(mine), false);
            self.trained.insert(index, trained);
        }
        let full = Rc::new(full);
        self.tensors.insert(parameter.value, Rc::clone(&full));
        Member {
            full,
            leaves,
            shard,
            elements,
            rows: shape,
            accumulated: RefCell::default(),
        }
    }
}
