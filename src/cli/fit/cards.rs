//! What is answered where no device is named and there is no GPU: the common cards.

use crate::cli::error::CliError;
use crate::cli::question::ParsedRequest;
use crate::cli::terminal::output;
use crate::device::sim::Card;
use crate::jobs::{DeviceKind, Engine as _, FitEngine};
use crate::model::{DeviceChoice, nicknames};

/// The cards that people ask about most, smallest memory first.
const COMMON: [&str; 9] = [
    "t4", "l4", "rtx4090", "rtx3090", "a100-40g", "l40s", "h100-80g", "a100-80g", "h200",
];

/// Why this machine has no GPU. Nothing where it has one, even one that cannot be used: its owner wants to know
/// what is missing.
pub(super) fn no_gpu(engine: &FitEngine) -> Option<String> {
    let devices = engine.devices();
    let real = || {
        devices
            .iter()
            .filter(|device| device.kind == DeviceKind::Cuda)
    };
    if real().any(|device| device.gpu.is_some()) {
        return None;
    }
    let missing = real().find_map(|device| device.missing.clone());
    Some(missing.unwrap_or_else(|| "this machine has no GPU".to_owned()))
}

/// The cards that people ask about most.
pub(super) fn common() -> Vec<&'static Card> {
    COMMON.iter().filter_map(|name| Card::find(name)).collect()
}

/// The cards of a list such as `rtx4090,rtx3090`; none where one is named, in words or by what it has.
pub(super) fn listed(on: Option<&str>) -> Result<Vec<&'static Card>, CliError> {
    let list = on.filter(|on| on.contains(',') && nicknames::parse(on).is_err());
    let parts: Vec<&str> = list.map_or_else(Vec::new, |list| list.split(',').collect());
    let is_several = |part: &&str| nicknames::parse(part).is_ok_and(|on| on.count.is_some());
    if parts.iter().any(is_several) {
        return Ok(Vec::new());
    }
    let card = |part: &&str| {
        let on = nicknames::parse(part).map_err(|invalid| CliError::named(&"--on", invalid))?;
        if let Some(note) = &on.note {
            output::note(note);
        }
        Ok(on.card)
    };
    parts.iter().map(card).collect()
}

/// Each question for each of these cards.
pub(super) fn over(questions: &[ParsedRequest], cards: &[&'static Card]) -> Vec<ParsedRequest> {
    let on = |one: &ParsedRequest, card: &Card| {
        let mut request = one.request.clone();
        request.device = DeviceChoice::Sim(card.name.to_owned());
        request.document.set("device", format!("sim:{}", card.name));
        ParsedRequest { request }
    };
    let all = questions
        .iter()
        .flat_map(|one| cards.iter().map(move |card| on(one, card)));
    all.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_common_cards_are_there_and_in_order() {
        let memory: Vec<_> = COMMON
            .iter()
            .map(|name| Card::find(name).unwrap().total_memory)
            .collect();

        assert!(memory.is_sorted(), "{memory:?}");
    }
}
