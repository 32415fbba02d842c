//! Which parameters' gradients share a bucket, and tensors that share a message.

use std::ops::Range;

use crate::shape::DType;

/// What a bucket's or a message's bytes are counted from: a parameter or buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Member {
    pub(super) dtype: DType,
    pub(super) elements: u64,
}

impl Member {
    fn bytes(self) -> u64 {
        self.elements.saturating_mul(self.dtype.size())
    }
}

/// Parts of a list of tensors, each of one type: indices into the list.
pub(super) type Parts = Vec<Vec<usize>>;

/// Goes through tensors in order, with an open part for each type, which is closed as soon as it has this many bytes: the
/// first of a type at the first of the limits, the next at the next, and all others at the last. Parts are in the order in which they
/// are closed; those that never are come last (`compute_bucket_assignment_by_size`, torch/csrc/distributed/c10d/reducer.cpp).
pub(super) fn parts(members: &[Member], limits: &[u64]) -> Parts {
    struct Open {
        dtype: DType,
        bytes: u64,
        limit: usize,
        members: Vec<usize>,
    }
    let mut open: Vec<Open> = Vec::new();
    let mut closed = Vec::new();
    for (index, member) in members.iter().enumerate() {
        let at = open.iter().position(|part| part.dtype == member.dtype);
        let at = at.unwrap_or_else(|| {
            open.push(Open {
                dtype: member.dtype,
                bytes: 0,
                limit: 0,
                members: Vec::new(),
            });
            open.len() - 1
        });
        let part = &mut open[at];
        part.members.push(index);
        part.bytes = part.bytes.saturating_add(member.bytes());
        let limit = limits.get(part.limit.min(limits.len().saturating_sub(1)));
        if limit.is_some_and(|limit| part.bytes >= *limit) {
            closed.push(std::mem::take(&mut part.members));
            part.bytes = 0;
            part.limit += 1;
        }
    }
    let left = open.into_iter().map(|part| part.members);
    closed.extend(left.filter(|members| !members.is_empty()));
    closed
}

/// The parts in the order of their first members.
pub(super) fn by_first(mut parts: Parts) -> Parts {
    crate::order::by_key(&mut parts, |part| part.first().copied());
    parts
}

/// Which of a list's elements are between these two, when all of them lie one behind the other.
pub(super) fn places(members: &[Member], part: &[usize]) -> Vec<Range<u64>> {
    let mut end = 0_u64;
    let lengths = part.iter().map(|index| members[*index].elements);
    lengths
        .map(|elements| {
            let start = end;
            end = end.saturating_add(elements);
            start..end
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn floats(elements: &[u64]) -> Vec<Member> {
        let of = |elements: &u64| Member {
            dtype: DType::Float32,
            elements: *elements,
        };
        elements.iter().map(of).collect()
    }

    #[test]
    fn a_bucket_closes_with_the_parameter_that_fills_it() {
        // GPT-2's first bucket of PyTorch's own limits, and one of a layer: reducer.cpp on the recorded gradients.
        let members = floats(&[MIB / 4, 1, 7 * MIB, 10]);
        assert_eq!(
            parts(&members, &[MIB, 25 * MIB]),
            [vec![0], vec![1, 2], vec![3]]
        );
        assert_eq!(parts(&members, &[u64::MAX]), [vec![0, 1, 2, 3]]);
        assert_eq!(parts(&[], &[MIB]), Parts::new());
    }

    #[test]
    fn each_type_has_parts_and_limits_of_its_own() {
        let half = |elements| Member {
            dtype: DType::BFloat16,
            elements,
        };
        let mut members = floats(&[MIB, MIB]);
        members.insert(1, half(MIB));
        members.push(half(1));
        assert_eq!(
            parts(&members, &[2 * MIB, 100 * MIB]),
            [vec![0], vec![1], vec![2], vec![3]]
        );
        assert_eq!(by_first(vec![vec![2, 3], vec![0]]), [vec![0], vec![2, 3]]);
        assert_eq!(places(&members, &[0, 3]), [0..MIB, MIB..MIB + 1]);
    }
}
