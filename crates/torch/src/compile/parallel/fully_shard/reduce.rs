//! What becomes of a unit's gradients.

use std::rc::Rc;

use super::group::{Group, Member, Phase};
use super::{REDUCE_SCATTER, Sharded, scratch};
use crate::eager::{Eager, Tensor, TensorBody};
use crate::program::{Binary, Category, Collective, Kernel, Reduction};
use crate::shape::{DType, Extent};

impl Sharded {
    /// `post_backward` of a unit: all gradients of its parameters are there.
    pub(super) fn after_backward(&self, eager: &mut Eager, unit: usize) {
        let group = &self.groups[unit];
        group.phase.set(Phase::PostBackward);
        let (category, label) = (eager.category(), eager.label());
        eager.set_label(&group.label);
        add_to_earlier(eager, group);
        group.reshard();
        if self.reduces.get() {
            self.reduce(eager, group);
        } else {
            self.keep_whole(eager, group);
        }
        eager.set_category(category);
        eager.set_label(&label);
    }

    /// Gradients of a micro-step that reduces none, in the type in which they will be (`to_accumulated_grad_if_needed`).
    fn keep_whole(&self, eager: &mut Eager, group: &Group) {
        let Some(dtype) = self.options.mixed_precision.reduce_dtype else {
            return;
        };
        eager.set_category(Category::Gradients);
        for member in &group.members {
            let Some([leaf, _]) = &member.leaves else {
                continue;
            };
            let is_other = |gradient: &Tensor| gradient.dtype != dtype;
            let gradient = leaf
                .grad
                .borrow_mut()
                .take_if(|gradient| is_other(gradient));
            if let Some(gradient) = gradient {
                eager.set_label(&leaf.path);
                let kept = eager.copy_as(&gradient, dtype);
                drop(gradient);
                *member.accumulated.borrow_mut() = Some(kept);
            }
        }
    }

    /// `foreach_reduce`: gradients of all ranks become one, of which each keeps its rows.
    fn reduce(&self, eager: &mut Eager, group: &Group) {
        let mut gradients = group.take_gradients();
        let Some((_, first)) = gradients.first() else {
            return;
        };
        let dtype = self
            .options
            .mixed_precision
            .reduce_dtype
            .unwrap_or(first.dtype);
        let stored = gradients
            .first()
            .map_or(dtype, |(member, _)| member.shard.dtype);
        drop(self.reduced.borrow_mut().take());
        let input = self.packed(eager, &gradients, dtype);
        let members: Vec<&Member> = gradients.iter().map(|(member, _)| *member).collect();
        // A loop's variable still names the last one, where there are ranks to go through.
        let last = gradients.pop_if(|_| self.options.world_size > 1);
        while let Some((_, gradient)) = gradients.pop() {
            drop(gradient);
        }
        let elements: u64 = members.iter().map(|member| member.elements).sum();
        let output = eager.on_stream(REDUCE_SCATTER, |eager| {
            eager.set_category(Category::Gradients);
            let count = [Extent::fixed(elements)];
            let output = eager.empty(&count, dtype);
            let reduction = Collective::ReduceScatter(Reduction::Mean);
            eager.launch(Kernel::Collective(reduction), &[&input], &[&output]);
            if dtype == stored {
                return output;
            }
            let cast = eager.empty(&count, stored);
            eager.launch(Kernel::Copy, &[&output], &[&cast]);
            cast
        });
        *self.reduced.borrow_mut() = Some(input);
        drop(last);
        self.hand_out(eager, &members, output);
    }

    /// Gradients as they are sent: the rows of each rank one behind the other (`chunk_cat`).
    fn packed(
        &self,
        eager: &mut Eager,
        gradients: &[(&Member, Tensor)],
        dtype: DType,
    ) -> TensorBody {
        let ranks = self.options.world_size;
        let elements: u64 = gradients.iter().map(|(member, _)| member.elements).sum();
        eager.set_category(Category::Communication);
        let count = Extent::fixed(elements.saturating_mul(ranks));
        let input = eager.empty(&[count], dtype);
        let shards: Vec<u64> = gradients
            .iter()
            .map(|(member, _)| member.elements * dtype.size())
            .collect();
        let _table = eager.scratch(scratch::of_copy_in(&shards));
        if gradients.iter().any(|(member, _)| member.is_padded(ranks)) {
            eager.launch(Kernel::Fill(0.0), &[], &[&input]);
        }
        let mut start = 0;
        for (member, gradient) in gradients {
            member.spread(eager, gradient, &input, [start, elements]);
            start += member.elements;
        }
        input
    }

    /// Makes what was reduced the gradients of the shards, or adds it to them.
    fn hand_out(&self, eager: &mut Eager, members: &[&Member], output: TensorBody) {
        let mut start = 0;
        for member in members {
            let rows = member.own_rows(&output, start);
            start += member.elements;
            let Some([_, leaf]) = &member.leaves else {
                continue;
            };
            if self.options.cpu_offload {
                continue;
            }
            let kept = leaf.grad.borrow().clone();
            match kept {
                Some(kept) => {
                    eager.launch(Kernel::Binary(Binary::Add), &[&kept, &rows], &[&kept]);
                }
                None => *leaf.grad.borrow_mut() = Some(Rc::new(rows)),
            }
        }
        drop(output);
    }
}

/// Gradients of later micro-steps are added to those that are kept whole (`accumulate_unsharded_grad_if_needed`).
fn add_to_earlier(eager: &mut Eager, group: &Group) {
    for member in &group.members {
        let (Some(kept), Some([leaf, _])) = (&*member.accumulated.borrow(), &member.leaves) else {
            continue;
        };
        let gradient = leaf.grad.borrow_mut().take();
        if let Some(gradient) = gradient {
            eager.launch(Kernel::Binary(Binary::Add), &[kept, &gradient], &[kept]);
            drop(gradient);
        }
    }
}
