//! Whether an answer of an agent can be one: in its form, its arithmetic, and as the answer to what was asked.

use serde_json::Value;

use crate::alloc::MemoryLimit;
use crate::jobs::{FitResult, HeadroomFrom, ProbeSummary, VariantResult};
use crate::limits::is_hidden;
use crate::model::{DeviceChoice, PYTORCH, Request};
use crate::probe::Evidence;
use crate::units::Share;
use batchfit_fit::search::MAX_BATCH;
use batchfit_fit::search::headroom::FLOOR;

use super::AgentCard;

/// Most bytes of a text, and most values of a whole answer: one of 144 variants has some 100,000.
const LONGEST: usize = 4_000;
const MOST_VALUES: usize = 400_000;

/// How many bytes of a text count as a value.
const BYTES_OF_A_VALUE: usize = 16;

/// Most notes, and the like, that stand beside each other.
const MOST_TEXTS: usize = 500;

/// The largest number of bytes, samples or milliseconds.
const LARGEST: f64 = (1_u64 << 60) as f64;

/// What may be less than nothing.
const SIGNED: &str = "gained";

/// Says what is wrong with an answer that one of these cards is to have found.
pub(super) fn check(
    result: &FitResult,
    request: &Request,
    cards: &[AgentCard],
) -> Result<(), String> {
    let mut left = MOST_VALUES;
    form(
        &serde_json::to_value(result).unwrap_or_default(),
        "",
        &mut left,
    )?;
    let card = found_on(result, request, cards)?;
    if result.variants.is_empty() || result.variants.len() > request.variants.len() {
        return Err("it is of other variants".to_owned());
    }
    let mut asked: Vec<Value> = request.variants.iter().map(value).collect();
    for (rank, variant) in (1..).zip(&result.variants) {
        let training = value(&variant.training);
        let Some(place) = asked.iter().position(|one| *one == training) else {
            return Err("it is of another variant".to_owned());
        };
        asked.swap_remove(place);
        if variant.rank != rank {
            return Err(format!("variant {rank} has rank {}", variant.rank));
        }
        arithmetic(variant, request, card)?;
    }
    if result.recommendation != result.variants[0].recommendation {
        return Err("what it recommends is not its first variant's".to_owned());
    }
    let is_shown = |probe: &ProbeSummary| {
        (probe.variant as usize) < result.variants.len()
            && probe.accumulation > 0
            && (1..=MAX_BATCH).contains(&probe.report.batch)
            && (probe.report.evidence != Evidence::Simulated
                || probe.report.peak_reserved_bytes <= probe.report.limit_bytes)
    };
    if !result.probes.iter().all(is_shown) {
        return Err("a probe is none of its variants'".to_owned());
    }
    if result.lengths.is_some() != request.lengths.is_some() {
        return Err("it is of other lengths".to_owned());
    }
    Ok(())
}

fn value(variant: &crate::model::Variant) -> Value {
    serde_json::to_value(variant).unwrap_or_default()
}

/// The card on which it was found, which has to be one of these, and what was asked about.
fn found_on<'c>(
    result: &FitResult,
    request: &Request,
    cards: &'c [AgentCard],
) -> Result<&'c AgentCard, String> {
    let on = &result.environment;
    if on.pytorch != PYTORCH {
        return Err(format!(
            "it is of PyTorch {}, and not {PYTORCH}",
            on.pytorch
        ));
    }
    let is_asked = |card: &&AgentCard| match &request.device {
        DeviceChoice::Kind(kind) => card.kind.as_ref() == Some(kind),
        DeviceChoice::Host(_, number) => card.device == format!("cuda:{number}"),
        DeviceChoice::Auto | DeviceChoice::Cuda(_) | DeviceChoice::Sim(_) => false,
    };
    let is_it = |card: &&AgentCard| match on.device.strip_prefix("sim:") {
        Some(kind) => card.simulated && card.kind.as_deref() == Some(kind),
        // Of several cards, the first.
        None => !card.simulated && on.device.split(',').next() == Some(card.device.as_str()),
    };
    let card = cards.iter().filter(is_asked).find(is_it);
    let card = card.ok_or_else(|| format!("it was not asked on {}", on.device))?;
    let is_other = |found: &Option<String>, has: &Option<String>| found.is_some() && found != has;
    if on.gpu != card.product() || is_other(&on.driver, &card.driver) {
        return Err(format!("{} is another card", on.device));
    }
    Ok(card)
}

/// Whether the figures of a variant agree with each other and with what was asked.
fn arithmetic(variant: &VariantResult, request: &Request, card: &AgentCard) -> Result<(), String> {
    let found = &variant.recommendation;
    let ensure = |holds: bool, what: &str| holds.then_some(()).ok_or_else(|| what.to_owned());
    let per_rank = found.micro_batch.checked_mul(found.accumulation_steps);
    let ranks = [request.world_size, variant.training.parallel.world_size()];
    let is_product = ranks.into_iter().any(|ranks| {
        per_rank.and_then(|samples| samples.checked_mul(ranks)) == Some(found.global_batch)
    });
    ensure(
        is_product,
        "its global batch is not its micro-batches times its steps and ranks",
    )?;
    ensure(
        found.micro_batch <= found.max_batch,
        "its micro-batch is above its largest batch",
    )?;
    ensure(
        (0.0..=1.0).contains(&found.headroom.fraction),
        "its headroom is no part of the limit",
    )?;
    let asked = match request.memory_limit {
        Some(MemoryLimit::Bytes(bytes)) => bytes.0.min(card.memory_bytes),
        Some(MemoryLimit::Fraction(_)) | None => card.memory_bytes,
    };
    ensure(
        found.limit_bytes <= asked || card.memory_bytes == 0,
        "its limit is above what was asked",
    )?;
    ensure(
        !card.simulated || matches!(found.evidence, Evidence::Simulated | Evidence::Recorded),
        "nothing ran on a simulated card",
    )?;
    ensure(
        found.evidence != Evidence::Trained || variant.training.recorded,
        "nobody trained",
    )?;
    ensure(
        found
            .fits
            .is_none_or(|fits| fits == (found.micro_batch > 0)),
        "it fits and does not fit",
    )?;
    if found.micro_batch == 0 {
        return Ok(());
    }
    ensure(
        found.micro_batch <= found.max_batch_steady
            && found.max_batch_steady.max(found.max_batch_without_retries) <= found.max_batch,
        "its largest batches contradict each other",
    )?;
    let asked = request.headroom.map(Share::fraction);
    let is_asked = match asked {
        Some(asked) => (found.headroom.fraction - asked).abs() < 1e-9,
        // Near a batch that ran, less is left.
        None if variant.training.recorded => found.headroom.fraction > 0.0,
        None => found.headroom.fraction > FLOOR.fraction() - 1e-9,
    };
    ensure(
        is_asked,
        "its headroom is not what was asked, or is less than any",
    )?;
    let doubts: f64 = found.headroom.doubts.values().sum();
    let is_sum = found.headroom.from != HeadroomFrom::Default
        || found.headroom.doubts.is_empty()
        || (doubts - found.headroom.fraction).abs() < 1e-4;
    ensure(
        is_sum && (0.0..=1.0).contains(&doubts),
        "its headroom is not the sum of its doubts",
    )?;
    ensure(
        found.peak_allocated_bytes <= found.peak_reserved_bytes
            && found.peak_reserved_bytes <= found.limit_bytes
            && found.headroom_bytes == found.limit_bytes - found.peak_reserved_bytes,
        "its peak does not go with its limit",
    )?;
    let target = request.target_batch.unwrap_or(found.global_batch);
    ensure(
        found.global_batch.checked_add(found.shortfall) == Some(target),
        "it makes another batch than was asked",
    )
}

/// Whether all numbers and texts are such as an answer has.
fn form(value: &Value, name: &str, left: &mut usize) -> Result<(), String> {
    let texts = value
        .as_str()
        .map_or(0, |text| text.len() / BYTES_OF_A_VALUE);
    *left = left.checked_sub(1 + texts).ok_or("it is too large")?;
    match value {
        Value::Null | Value::Bool(_) => Ok(()),
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or(f64::INFINITY);
            let least = if name == SIGNED { -LARGEST } else { 0.0 };
            if (least..=LARGEST).contains(&number) {
                return Ok(());
            }
            Err(format!("`{name}` is {number}"))
        }
        Value::String(text) => match text_fault(text) {
            Some(fault) => Err(format!("`{name}` {fault}")),
            None => Ok(()),
        },
        Value::Array(items) => {
            let texts = items.iter().filter(|item| item.is_string()).count();
            if texts > MOST_TEXTS {
                return Err(format!("`{name}` has {texts} texts"));
            }
            items.iter().try_for_each(|item| form(item, name, left))
        }
        Value::Object(members) => members.iter().try_for_each(|(name, member)| {
            if let Some(fault) = text_fault(name) {
                return Err(format!("a name {fault}"));
            }
            form(member, name, left)
        }),
    }
}

/// What is wrong with a text that others read.
fn text_fault(text: &str) -> Option<&'static str> {
    if text.len() > LONGEST {
        return Some("is too long");
    }
    text.contains(leads_astray)
        .then_some("has control characters")
}

/// Whether it does: such texts have several lines.
fn leads_astray(c: char) -> bool {
    c != '\n' && is_hidden(c)
}

/// A text of an agent, of at most so many bytes and without what leads readers astray.
pub(super) fn cut(text: &str, most: usize) -> String {
    let mut text = text.replace(leads_astray, "\u{fffd}");
    if text.len() > most {
        let end = (0..=most).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
    }
    text
}
