//! The same requests under several settings: what a user with a fragmentation problem wants to know.

use super::driver::UNKNOWN_TOTAL;
use super::report::ComparisonRow;
use super::run::verdict;
use super::simulate::{Conditions, Requests};
use crate::alloc::Settings;
use crate::probe::Verdict;
use crate::units::Bytes;

/// What is tried beside the settings asked for. The first is PyTorch's default.
const CANDIDATES: &[&str] = &[
    "",
    "expandable_segments:True",
    "max_split_size_mb:32",
    "max_split_size_mb:128",
    "max_split_size_mb:512",
    "roundup_power2_divisions:2",
    "roundup_power2_divisions:4",
    "roundup_power2_divisions:8",
    "garbage_collection_threshold:0.6",
    "garbage_collection_threshold:0.8",
    "max_split_size_mb:128,garbage_collection_threshold:0.8",
];

/// Limits are looked for in these: what the driver hands out memory in.
const STEP: Bytes = Bytes::mib(2);

/// Compares settings under the limit of `conditions`, best first: what fits without retries, then what
/// needs the smallest limit.
pub(super) fn compare(
    requests: &Requests<'_>,
    conditions: &Conditions,
    others: &[Settings],
) -> Vec<ComparisonRow> {
    let candidates = CANDIDATES
        .iter()
        .map(|text| text.parse().expect("the candidates are valid settings"));
    let mut all: Vec<Settings> = candidates.collect();
    for other in others {
        if !all.contains(other) {
            all.push(other.clone());
        }
    }
    let mut rows: Vec<ComparisonRow> = all
        .iter()
        .map(|settings| row(requests, conditions, settings))
        .collect();
    // A stable sort: the default goes before what is no better.
    crate::order::by_key(&mut rows, |row| {
        (
            row.verdict.severity(),
            row.smallest_limit_bytes.unwrap_or(u64::MAX),
            row.peak_reserved_bytes,
        )
    });
    rows
}

fn row(requests: &Requests<'_>, conditions: &Conditions, settings: &Settings) -> ComparisonRow {
    let conditions = Conditions {
        settings: settings.clone(),
        ..conditions.clone()
    };
    let simulated = requests.simulate(&conditions, (), None);
    let stats = &simulated.stats;
    let verdict = verdict(simulated.runs_out(requests.recording), stats);
    ComparisonRow {
        allocator: settings.to_string(),
        verdict,
        fits: matches!(verdict, Verdict::Fits | Verdict::FitsWithRetries),
        peak_allocated_bytes: stats.peak_allocated().0,
        peak_reserved_bytes: stats.peak_reserved().0,
        retries: stats.num_alloc_retries,
        ooms: stats.num_ooms,
        smallest_limit_bytes: smallest_limit(requests, settings),
    }
}

/// The smallest limit, in steps of 2 MiB, under which everything fits without retries.
///
/// Bisects between what is allocated, which no limit can be below, and what is reserved without a limit.
///
/// The answer has been simulated to fit, and a step less not to. Under a garbage collection, which looks at
/// the limit, a much smaller one might fit again.
fn smallest_limit(requests: &Requests<'_>, settings: &Settings) -> Option<u64> {
    let run = |limit: Option<Bytes>| {
        let conditions = Conditions {
            settings: settings.clone(),
            limit,
            total: None,
        };
        requests.simulate(&conditions, (), None)
    };
    let fits = |steps: u64| {
        let simulated = run(Some(Bytes(steps * STEP.0)));
        simulated.stop.is_none() && simulated.stats.num_alloc_retries == 0
    };
    let free = run(None);
    if free.stop.is_some() {
        return None;
    }
    let steps = |bytes: Bytes| bytes.0.div_ceil(STEP.0);
    let mut too_small = steps(free.stats.peak_allocated()).saturating_sub(1);
    let mut enough = steps(free.stats.peak_reserved()).max(1);
    while !fits(enough) {
        // An expandable segment may map less than the limit is asked for.
        too_small = too_small.max(enough);
        enough += enough.div_ceil(8);
        if enough > steps(UNKNOWN_TOTAL) {
            return None;
        }
    }
    while enough - too_small > 1 {
        let middle = too_small + (enough - too_small) / 2;
        if fits(middle) {
            enough = middle;
        } else {
            too_small = middle;
        }
    }
    Some(enough * STEP.0)
}
