//! What a rank sends to the others.

use super::{Call, Collective, Instruction, Kernel, Program, Section, View};

impl Program {
    /// Bytes that each of so many ranks sends to others in a later step, as a ring of them moves them, which is what `NCCL` counts in
    /// its bus bandwidth (`PERFORMANCE.md` of NVIDIA's nccl-tests): of `n` ranks, each sends `2(n-1)/n` of what is
    /// all-reduced, `(n-1)/n` of what is gathered from all or reduced and scattered, and all of what is broadcast.
    pub fn communicated_bytes(&self, ranks: u64, batch: u64) -> u64 {
        let sections = self.steps.last().into_iter().flatten();
        let of_section = |section: &Section| {
            let launches = section.instructions.iter().filter_map(|one| match one {
                Instruction::Launch(call) => Some(&**call),
                Instruction::Allocate(_) | Instruction::Free(_) => None,
            });
            let once: u64 = launches
                .map(|call| sent(call, ranks, batch))
                .fold(0, u64::saturating_add);
            once.saturating_mul(section.times.into())
        };
        sections.map(of_section).fold(0, u64::saturating_add)
    }
}

fn sent(call: &Call, ranks: u64, batch: u64) -> u64 {
    let Kernel::Collective(collective) = &call.kernel else {
        return 0;
    };
    let bytes = |views: &[View]| -> u64 {
        let of_view = |view: &View| {
            let lengths = view.shape.iter().map(|length| length.at(batch));
            lengths.fold(view.dtype.size(), u64::saturating_mul)
        };
        views.iter().map(of_view).fold(0, u64::saturating_add)
    };
    let others = ranks.saturating_sub(1);
    let share = |whole: u64, times: u64| {
        let sent = u128::from(whole) * u128::from(times * others) / u128::from(ranks.max(1));
        u64::try_from(sent).unwrap_or(u64::MAX)
    };
    match collective {
        Collective::AllReduce(_) => share(bytes(&call.inputs), 2),
        Collective::AllGather => share(bytes(&call.outputs), 1),
        Collective::ReduceScatter(_) => share(bytes(&call.inputs), 1),
        Collective::Broadcast { .. } if others == 0 => 0,
        Collective::Broadcast { .. } => bytes(&call.inputs),
    }
}
