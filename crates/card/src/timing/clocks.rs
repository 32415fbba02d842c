//! A step as two clocks: the host's and the card's.

use std::collections::BTreeMap;

use crate::device::sim::Ceilings;
use crate::program::{Host, Tick, Timeline};

use super::host;
use super::job::Job;

/// What passes between a launch by the host and its start on an idle card (measured launch latencies are 3 to 6 us).
const LAUNCH: f64 = 5e-6;

/// Micro-steps that are followed one by one: after these each takes as long as the one before.
const FOLLOWED: u32 = 3;

/// How long a step takes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTime {
    /// From its start until the card is done.
    pub seconds: f64,
    /// How long the card computes in it.
    pub busy_seconds: f64,
    /// How long the host works in it, waits apart.
    pub host_seconds: f64,
}

/// The clocks of a step.
#[derive(Debug, Clone, Copy, Default)]
struct Clocks {
    host: f64,
    card: f64,
    busy: f64,
    worked: f64,
}

/// How long a later step of a program takes on a card of these ceilings at a batch; `None` where it is unknown what it does.
///
/// As measured with a wait for the card after each step: the next step's launches do not run ahead.
/// `pace` is how many times as long the host takes as the one that was measured.
pub fn step(timeline: &Timeline, ceilings: &Ceilings, batch: u64, pace: f64) -> Option<StepTime> {
    longer_step(timeline, ceilings, batch, pace, 0)
}

/// The same with so many micro-steps more than the program has. Only of a program with several, in which they are alike.
pub fn longer_step(
    timeline: &Timeline,
    ceilings: &Ceilings,
    batch: u64,
    pace: f64,
    more: u32,
) -> Option<StepTime> {
    if timeline.is_empty() || (more > 0 && timeline.repeated.is_none()) {
        return None;
    }
    let works = timeline.works.iter();
    let seconds: Vec<f64> = works
        .map(|work| Job::of(work, batch).seconds(ceilings))
        .collect();
    let mut clocks = Clocks::default();
    for (index, (ticks, times)) in timeline.sections.iter().enumerate() {
        let more = if timeline.repeated == Some(index) {
            more
        } else {
            0
        };
        let times = times.saturating_add(more);
        let mut before = clocks;
        for _ in 0..times.min(FOLLOWED) {
            before = clocks;
            clocks.follow(ticks, &seconds, pace);
        }
        clocks.skip(before, times.saturating_sub(FOLLOWED));
    }
    Some(StepTime {
        seconds: clocks.host.max(clocks.card),
        busy_seconds: clocks.busy,
        host_seconds: clocks.worked,
    })
}

impl Clocks {
    fn follow(&mut self, ticks: &[Tick], seconds: &[f64], pace: f64) {
        for tick in ticks {
            match tick {
                Tick::Host(what, times) => {
                    let spent = pace * host::seconds(*what) * f64::from(*times);
                    self.host += spent;
                    self.worked += spent;
                }
                Tick::Queue(work) => {
                    let takes = seconds[work.0 as usize];
                    self.card = self.card.max(self.host + LAUNCH) + takes;
                    self.busy += takes;
                }
                Tick::Wait => self.host = self.host.max(self.card),
            }
        }
    }

    /// Goes on as it did since `before`, so many times.
    fn skip(&mut self, before: Clocks, times: u32) {
        let times = f64::from(times);
        self.host += times * (self.host - before.host);
        self.card += times * (self.card - before.card);
        self.busy += times * (self.busy - before.busy);
        self.worked += times * (self.worked - before.worked);
    }
}

/// A class of kernels in a step, to show where the time goes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Piece {
    /// Launches.
    pub count: u64,
    /// Seconds of the card.
    pub seconds: f64,
    /// Floating-point operations.
    pub flops: f64,
    /// Bytes read and written.
    pub bytes: f64,
}

/// What the card does in a step by class of kernels, and how often the host does what.
pub fn pieces(
    timeline: &Timeline,
    ceilings: &Ceilings,
    batch: u64,
) -> (BTreeMap<String, Piece>, Vec<(Host, u64)>) {
    let works = timeline.works.iter();
    let jobs: Vec<Job> = works.map(|work| Job::of(work, batch)).collect();
    let mut pieces: BTreeMap<String, Piece> = BTreeMap::new();
    let mut hosts: Vec<(Host, u64)> = Host::ALL.map(|host| (host, 0)).into();
    for (ticks, times) in &timeline.sections {
        for tick in ticks {
            match tick {
                Tick::Queue(work) => {
                    let job = &jobs[work.0 as usize];
                    let piece = pieces.entry(job.class.clone()).or_default();
                    let times = u64::from(*times);
                    piece.count += times;
                    piece.seconds += times as f64 * job.seconds(ceilings);
                    piece.flops += times as f64 * job.flops;
                    piece.bytes += times as f64 * job.bytes;
                }
                Tick::Host(what, count) => {
                    if let Some((_, sum)) = hosts.iter_mut().find(|(host, _)| host == what) {
                        *sum += u64::from(*count) * u64::from(*times);
                    }
                }
                Tick::Wait => {}
            }
        }
    }
    (pieces, hosts)
}
