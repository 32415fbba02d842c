//! What binds.

use crate::fitting::recommendation::notes::{Around, LimitSource};
use crate::probe::{Evidence, ProbeReport, Shortage, Verdict};
use crate::units::Bytes;
use crate::{Limit, LimitKind};

const GIB: u64 = 1 << 30;

fn report(batch: u64, verdict: Verdict, shortage: Option<Shortage>) -> ProbeReport {
    ProbeReport {
        peak_allocated_bytes: 12 * GIB,
        peak_reserved_bytes: 15 * GIB,
        model_allocated_bytes: GIB,
        shortage,
        ..ProbeReport::new(batch, verdict, Evidence::Simulated, Bytes::gib(16))
    }
}

fn shortage(allocated_bytes: u64) -> Shortage {
    Shortage {
        requested_bytes: Some(2 * GIB),
        allocated_bytes,
        reserved_bytes: 15 * GIB,
        free_bytes: 15 * GIB - allocated_bytes,
        free_pieces: 7,
        largest_free_bytes: GIB,
    }
}

fn limit(at: &ProbeReport, above: Option<&ProbeReport>, source: LimitSource) -> Limit {
    let around = Around {
        at,
        above,
        largest: 8,
        at_ceiling: false,
        headroom: Bytes::gib(1),
        objective: None,
        has_target: false,
        source,
    };
    around.why().limit
}

#[test]
fn tensors_that_would_fit_are_kept_out_by_fragmentation() {
    let at = report(8, Verdict::Fits, None);
    let above = report(9, Verdict::OutOfMemory, Some(shortage(13 * GIB)));

    let limit = limit(&at, Some(&above), LimitSource::Device);

    assert_eq!(limit.kind, LimitKind::Fragmentation);
    assert_eq!(
        limit.explanation,
        "batch 9 asks for 2.00 GiB where 13.00 GiB of 16.00 GiB are allocated; 2.00 GiB lie free in 7 pieces, the \
         largest of them 1.00 GiB"
    );
}

#[test]
fn tensors_that_would_not_fit_name_whose_limit_it_is() {
    let mut at = report(8, Verdict::Fits, None);
    let above = report(9, Verdict::OutOfMemory, Some(shortage(15 * GIB)));

    let of = |at: &ProbeReport, source| limit(at, Some(&above), source).kind;
    let kinds = [LimitSource::Asked, LimitSource::Device].map(|source| of(&at, source));
    at.used_by_others_bytes = Some(3 * GIB);
    let shared = of(&at, LimitSource::Device);
    at.used_by_others_bytes = Some(GIB / 2);
    let hardly_shared = of(&at, LimitSource::Device);

    assert_eq!(kinds, [LimitKind::MemoryLimit, LimitKind::Device]);
    assert_eq!(shared, LimitKind::OtherProcesses);
    assert_eq!(hardly_shared, LimitKind::Device);
}

#[test]
fn what_is_kept_free_is_named_where_larger_batches_run() {
    let at = report(6, Verdict::Fits, None);

    let limit = limit(&at, None, LimitSource::Device);
    assert_eq!(limit.kind, LimitKind::Headroom);
}

#[test]
fn retries_are_fragmentation() {
    let at = report(8, Verdict::Fits, None);
    let above = report(9, Verdict::FitsWithRetries, None);

    let limit = limit(&at, Some(&above), LimitSource::Asked);

    assert_eq!(limit.kind, LimitKind::Fragmentation);
    assert_eq!(limit.batch, Some(9));
}
