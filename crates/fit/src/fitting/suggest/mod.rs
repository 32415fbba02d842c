//! What else could be done: changes of a request, each answered as if it had been asked.
//!
//! A change is a JSON merge patch. The patched request goes through the engine like any other, so that a suggestion's numbers are
//! those of a fit of that request.

mod candidates;
mod checkpoints;
mod combined;

use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{self, ScopedJoinHandle};

use serde_json::{Value, json};

use crate::device::sim::Card;
use crate::fitting::Result;
use crate::limits::Cancel;
use crate::model::{Mode, Parallel, Precision, Request, Suggest, Variant, Workload};
use crate::probe::{CategoryBytes, Verdict};
use crate::program::Category;
use crate::units::Bytes;
use crate::{
    Engine, EngineError, FitResult, Isolation, Recommendation, Suggestion, SuggestionKind, Work,
};

use super::devices::placed;
use super::engine::{FitEngine, WITH_BF16, card, is_to_be_recorded, lowered};
use super::probing::runner::Observer;
use candidates::{Candidate, OFFLOADING};

/// What is wanted, and what there is.
struct Aim<'a> {
    request: &'a Request,
    card: &'static Card,
    /// The variant that is changed: the best one.
    variant: &'a Variant,
    /// The micro-batch of each GPU that is wanted.
    micro_batch: u64,
    /// Samples that all GPUs take at once now.
    at_once: u64,
    /// What is allocated of one sample where nothing fits.
    at_peak: &'a [CategoryBytes],
    /// What the allocator may reserve.
    limit: u64,
}

impl Aim<'_> {
    /// Samples that all GPUs are wanted to take at once.
    fn wanted(&self) -> u64 {
        let ranks = self.variant.parallel.world_size();
        self.micro_batch.saturating_mul(ranks)
    }

    /// Whether its card computes in bfloat16.
    fn has_bf16(&self) -> bool {
        self.card.capability.compute >= WITH_BF16
    }

    /// Whether what stays from step to step (parameters, gradients, the optimizer's state) is more than the limit for a changed request
    /// and its variant, whatever else there is. What is known of one sample is the least of these.
    fn is_hopeless(&self, changed: &Request, after: &Variant) -> bool {
        let other = card(changed).filter(|other| other.name != self.card.name);
        let limit = other.map_or(self.limit, |card| card.total_memory.0);
        let held = |category| {
            let of = self.at_peak.iter().filter(|part| part.category == category);
            of.map(|part| part.bytes).sum::<u64>()
        };
        let [mut weights, mut gradients, mut state] = [
            Category::Parameters,
            Category::Gradients,
            Category::OptimizerState,
        ]
        .map(held);
        let before = self.variant;
        let is_adapted = |request: &Request| request.is_adapted() == Some(true);
        let adapts = is_adapted(changed) && !is_adapted(self.request);
        if adapts {
            (gradients, state) = (0, 0);
        }
        if after.optimizer != before.optimizer {
            state = 0;
        }
        // An adapter's base may be in the type of the config, or in fp16.
        let is_in_half = is_adapted(changed) || after.precision == Precision::Bf16;
        if is_in_half && before.precision != Precision::Bf16 {
            (weights, gradients, state) = (weights / 2, gradients / 2, state / 2);
        }
        if after.parallel != before.parallel {
            let shards = match &before.parallel {
                Parallel::None | Parallel::Ddp(_) => 1,
                sharded => sharded.world_size(),
            };
            let ranks = after.parallel.world_size();
            let shared = |bytes: u64| bytes.saturating_mul(shards) / ranks.max(1);
            state = shared(state);
            if let Parallel::Fsdp2(sharded) = &after.parallel {
                (weights, gradients) = (shared(weights), shared(gradients));
                if sharded.cpu_offload {
                    return false;
                }
            }
        }
        self.at_once == 0 && weights + gradients + state > limit
    }
}

impl FitEngine {
    /// Adds changes of a request to its answer, each with its own.
    pub fn suggest(
        &self,
        request: &Request,
        result: &mut FitResult,
        work: &Work<'_>,
    ) -> Result<()> {
        let placed = placed(request, || self.catalogue().inventory())?;
        add(self, &placed, result, &Observer::new(work))
    }
}

/// Adds suggestions to an answer, or says why there are none.
pub(super) fn add(
    engine: &FitEngine,
    request: &Request,
    result: &mut FitResult,
    observer: &Observer<'_>,
) -> Result<()> {
    match aim(request, result, observer)? {
        Ok(aim) => {
            let (wanted, found) = (aim.wanted(), suggestions(engine, &aim, observer)?);
            let is_qlora_near = aim.at_once == 0 && request.is_adapted() == Some(false);
            let card = aim.card.name;
            result.suggested_for = Some(wanted);
            result.suggestions = found;
            if is_qlora_near {
                let best = &mut result.recommendation;
                let others = result
                    .variants
                    .iter_mut()
                    .map(|one| &mut one.recommendation);
                let note = format!(
                    "QLoRA, LoRA over weights in 4 bits, takes less still and is not simulated by the model's name: \
                     `batchfit run --on {card} -- python train.py` runs your own script with bitsandbytes on a virtual GPU"
                );
                for one in others.take(1).chain([best]) {
                    one.notes.insert(0, note.clone());
                }
            }
        }
        Err(why) => {
            let why = format!("no changes are suggested, because {why}");
            result.recommendation.notes.push(why.clone());
            result.variants[0].recommendation.notes.push(why);
        }
    }
    Ok(())
}

/// What changes of a request have to reach, or why none are looked for.
fn aim<'a>(
    request: &'a Request,
    result: &'a FitResult,
    observer: &Observer<'_>,
) -> Result<Result<Aim<'a>, &'static str>> {
    let Some(card) = card(request) else {
        return Ok(Err("they are simulated; ask about a simulated card"));
    };
    if !request.cards.is_empty() {
        return Ok(Err("the ranks have different cards"));
    }
    let workload = &lowered(request, observer.cancel())?.workload;
    let is_recorded = matches!(workload, Workload::Recorded(_));
    if is_recorded || is_to_be_recorded(request, observer.cancel())? {
        return Ok(Err("recordings decide how is trained"));
    }
    let variant = &result.variants[0].training;
    if variant.mode == Mode::Inference {
        return Ok(Err("inference has little that could be changed"));
    }
    let ranks = variant.parallel.world_size();
    let found = result.recommendation.micro_batch;
    let of_target = request.target_batch.map(|target| target.div_ceil(ranks));
    if of_target.is_some_and(|target| target <= found) {
        return Ok(Err(
            "the target is reached in one micro-step; ask without it, or for a larger one",
        ));
    }
    let micro_batch = match (request.suggest, of_target) {
        (None, _) if found == 0 => 1,
        (Some(Suggest::MicroBatch(wanted)), _) => wanted,
        (_, Some(wanted)) if wanted > found => wanted,
        _ => found.saturating_mul(2).max(1),
    };
    Ok(Ok(Aim {
        request,
        card,
        variant,
        micro_batch,
        at_once: at_once(&result.recommendation, request, ranks),
        at_peak: result
            .recommendation
            .why
            .as_ref()
            .map_or(&[], |why| &why.at_peak),
        limit: result.recommendation.limit_bytes,
    }))
}

/// All changes that the request allows, whether they gain anything or not; the cheapest that reach what is wanted come first.
fn suggestions(
    engine: &FitEngine,
    aim: &Aim<'_>,
    observer: &Observer<'_>,
) -> Result<Vec<Suggestion>> {
    let mut candidates = candidates::all(aim, observer)?;
    candidates.extend(checkpoints::candidates(aim, observer)?);
    let trials = Trials {
        engine,
        aim,
        cancel: observer.cancel(),
        read: Mutex::default(),
        fits: Mutex::default(),
    };
    let answered = trials.each(&candidates, observer, |candidate, told| {
        let suggestion = trials.answered(candidate, told)?;
        Ok(suggestion.map(|suggestion| (candidate.price, suggestion)))
    })?;
    let mut found: Vec<(u32, Suggestion)> = answered.into_iter().flatten().collect();
    // What people turn to last, or what changes their data, does not stand for what they try first.
    let ranks = aim.variant.parallel.world_size();
    let fits = |(price, one): &(u32, Suggestion)| {
        let is_first = *price < OFFLOADING && one.kind != SuggestionKind::Tokens;
        is_first && one.micro_batch > 0 && one.world_size == ranks
    };
    if aim.at_once == 0 && !found.iter().any(fits) {
        combined::add(&trials, &candidates, &mut found, observer)?;
    }
    crate::order::by_key(&mut found, |(price, suggestion)| {
        let Suggestion {
            reaches, gained, ..
        } = suggestion;
        let price = if *reaches { *price } else { 0 };
        (!reaches, price, std::cmp::Reverse(*gained))
    });
    Ok(found
        .into_iter()
        .map(|(_, suggestion)| suggestion)
        .collect())
}

/// Told of each change that is tried.
type Told = mpsc::Sender<String>;

/// Changed requests that were tried, each graph read once.
struct Trials<'a> {
    engine: &'a FitEngine,
    aim: &'a Aim<'a>,
    cancel: &'a Cancel,
    /// A request for each graph.
    read: Mutex<Vec<Request>>,
    /// Whether a batch fits, by patch.
    fits: Mutex<Vec<(Value, bool)>>,
}

/// What is behind a lock. A thread that panicked takes the others with it.
fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Trials<'_> {
    /// What becomes of each of these, in their order, on as many threads as the engine may use.
    fn each<A: Sync, T: Send>(
        &self,
        all: &[A],
        observer: &Observer<'_>,
        one: impl Fn(&A, &Told) -> Result<T> + Sync,
    ) -> Result<Vec<T>> {
        let next = AtomicUsize::new(0);
        let (told, notes) = mpsc::channel();
        let work = |told: Told| {
            let take = || {
                let at = next.fetch_add(1, Ordering::Relaxed);
                all.get(at).map(|this| (at, this))
            };
            std::iter::from_fn(take)
                .map(|(at, this)| (at, one(this, &told)))
                .collect::<Vec<_>>()
        };
        let mut done = thread::scope(|scope| {
            let threads: Vec<_> = (0..self.engine.threads.min(all.len()))
                .map(|_| {
                    let told = told.clone();
                    scope.spawn(|| work(told))
                })
                .collect();
            drop(told);
            for note in notes {
                observer.tell(&note);
            }
            let joined = threads.into_iter().map(ScopedJoinHandle::join);
            joined
                .flat_map(|done| done.unwrap_or_else(|panic| resume_unwind(panic)))
                .collect::<Vec<_>>()
        });
        crate::order::by_key(&mut done, |(at, _)| *at);
        done.into_iter().map(|(_, one)| one).collect()
    }

    /// The patch of a change, and the changed request where it is one.
    fn changed(&self, candidate: &Candidate, told: &Told) -> (Value, Option<Request>) {
        // Nobody listens any more where the answer is given up.
        let _ = told.send(format!("answering with {}", candidate.change));
        let mut patch = pinned(self.aim);
        merge(&mut patch, &candidate.patch);
        let changed = self.aim.request.changed(&patch).ok();
        if let Some(changed) = &changed
            && !self.aim.is_hopeless(changed, &changed.variants[0])
            && !changed.shares_one_of(&held(&self.read))
            && lowered(changed, self.cancel).is_ok()
        {
            held(&self.read).push(changed.clone());
        }
        (patch, changed)
    }

    /// Whether a batch fits with a change; at once where one sample leaves headroom or runs out of memory.
    fn fits(&self, candidate: &Candidate, told: &Told) -> Result<bool> {
        let (patch, changed) = self.changed(candidate, told);
        let is_known = |known: &&(Value, bool)| known.0 == patch;
        if let Some((_, fits)) = held(&self.fits).iter().find(is_known) {
            return Ok(*fits);
        }
        let quiet = Work::quiet(self.cancel);
        let observer = Observer::new(&quiet);
        let mut seen = None;
        if let Some(changed) = &changed {
            if self.aim.is_hopeless(changed, &changed.variants[0]) {
                seen = Some(false);
            } else if let Some(mut one) = self.engine.one(changed, &observer)? {
                seen = match one.sample() {
                    Ok((Verdict::OutOfMemory, _)) => Some(false),
                    Ok((_, is_safe)) => is_safe.then_some(true),
                    Err(EngineError::Cancelled) => return Err(EngineError::Cancelled),
                    Err(_) => None,
                };
            }
        }
        let fits = match seen {
            Some(fits) => fits,
            None => self
                .answered(candidate, told)?
                .is_some_and(|one| one.micro_batch > 0),
        };
        held(&self.fits).push((patch, fits));
        Ok(fits)
    }

    /// Takes back that a batch fits with a patch.
    fn fails(&self, patch: &Value) {
        let mut known = held(&self.fits);
        for (_, fits) in known.iter_mut().filter(|(known, _)| known == patch) {
            *fits = false;
        }
    }

    /// A change with its answer; `None` where the changed request is none.
    fn answered(&self, candidate: &Candidate, told: &Told) -> Result<Option<Suggestion>> {
        let (patch, changed) = self.changed(candidate, told);
        let (aim, Some(changed)) = (self.aim, changed) else {
            return Ok(None);
        };
        let ranks = changed.variants[0].parallel.world_size();
        if aim.is_hopeless(&changed, &changed.variants[0]) {
            return Ok(Some(without(candidate, patch, aim, ranks)));
        }
        let quiet = Work::quiet(self.cancel);
        let observer = Observer::new(&quiet);
        let answered = match self.engine.one(&changed, &observer)? {
            Some(mut one) => {
                // One sample is quickly refused where nothing fits.
                let is_tried = aim.at_once == 0;
                if is_tried && matches!(one.sample(), Ok((Verdict::OutOfMemory, _))) {
                    return Ok(Some(without(candidate, patch, aim, ranks)));
                }
                one.answer(&observer)
            }
            None => self.engine.fit(&changed, Isolation::Shared, &quiet),
        };
        // What the graph has not, such as blocks.
        let result = match answered {
            Ok(result) => result,
            Err(EngineError::Cancelled) => return Err(EngineError::Cancelled),
            Err(_) => return Ok(None),
        };
        let best = &result.recommendation;
        let variant = &result.variants[0].training;
        let world_size = variant.parallel.world_size();
        let at_once = at_once(best, &changed, world_size);
        Ok(Some(Suggestion {
            reaches: at_once >= aim.wanted(),
            gained: difference(at_once, aim.at_once),
            micro_batch: best.micro_batch,
            accumulation_steps: best.accumulation_steps,
            global_batch: best.global_batch,
            max_batch_without_retries: best.max_batch_without_retries,
            peak_reserved_bytes: best.peak_reserved_bytes,
            samples_per_second: best.samples_per_second,
            speed_from: best.speed_from,
            ..without(candidate, patch, aim, world_size)
        }))
    }
}

/// How many samples all GPUs take at once. The plan for a target may have a smaller micro-batch than fits, where that makes it exactly.
fn at_once(best: &Recommendation, request: &Request, ranks: u64) -> u64 {
    let of_target = request
        .target_batch
        .map_or(0, |target| target.div_ceil(ranks));
    let fitting = best.max_batch_without_retries.min(of_target);
    best.micro_batch.max(fitting).saturating_mul(ranks)
}

/// A change that makes nothing fit.
fn without(candidate: &Candidate, patch: Value, aim: &Aim<'_>, world_size: u64) -> Suggestion {
    Suggestion {
        kind: candidate.kind,
        change: candidate.change.clone(),
        patch,
        reaches: false,
        gained: difference(0, aim.at_once),
        micro_batch: 0,
        accumulation_steps: 0,
        global_batch: 0,
        max_batch_without_retries: 0,
        peak_reserved_bytes: 0,
        world_size,
        cost: candidate.cost.clone(),
        samples_per_second: None,
        speed_from: None,
    }
}

/// The best of several variants in the words of a request; nothing where the request asks for one.
fn pinned(aim: &Aim<'_>) -> Value {
    if aim.request.variants.len() == 1 {
        return json!({});
    }
    let variant = aim.variant;
    let mut training = json!({
        "precision": variant.precision.name(),
        "optimizer": variant.optimizer.name(),
        "optimizer_impl": variant.optimizer_impl.name(),
        "checkpointing": variant.checkpointing,
    });
    if aim.request.names_strategy {
        training["parallel"] = json!({ "strategy": variant.parallel.name().unwrap_or("none") });
        if let Parallel::Fsdp2(sharded) = &variant.parallel {
            training["parallel"]["reshard_after_forward"] = sharded.reshard_after_forward.into();
        }
    }
    json!({ "training": training })
}

/// Puts members of objects into others, deep.
fn merge(to: &mut Value, from: &Value) {
    match (to, from) {
        (Value::Object(to), Value::Object(from)) => {
            for (key, value) in from {
                merge(to.entry(key).or_insert(Value::Null), value);
            }
        }
        (to, from) => to.clone_from(from),
    }
}

fn difference(now: u64, before: u64) -> i64 {
    let apart = i64::try_from(now.abs_diff(before)).unwrap_or(i64::MAX);
    if now < before { -apart } else { apart }
}

/// Far above any card, far below where sums of bytes overflow.
const PLENTY: Bytes = Bytes::gib(1 << 20);
