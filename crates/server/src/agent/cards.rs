//! The cards of this machine, as an agent registers them.

use crate::device::sim::Card;
use crate::jobs::{AgentCard, DeviceKind, DeviceSummary};

/// The real cards among the devices of an engine, or what is missing to use any.
pub fn cards_of(devices: &[DeviceSummary]) -> Result<Vec<AgentCard>, String> {
    let real = devices
        .iter()
        .filter(|device| device.kind == DeviceKind::Cuda);
    let cards: Vec<AgentCard> = real
        .clone()
        .filter(|device| device.available)
        .map(card)
        .collect();
    if !cards.is_empty() {
        return Ok(cards);
    }
    let missing = real.clone().find_map(|device| device.missing.clone());
    Err(missing.unwrap_or_else(|| "this machine has no GPU".to_owned()))
}

fn card(device: &DeviceSummary) -> AgentCard {
    let gpu = device.gpu.clone().unwrap_or_default();
    AgentCard {
        device: device.device.clone(),
        kind: device.card.clone(),
        mig: profile(&gpu),
        gpu,
        memory_bytes: device.memory_bytes.unwrap_or(0),
        usable_bytes: device.usable_bytes,
        compute_capability: device.compute_capability.clone(),
        multiprocessors: device.multiprocessors,
        driver: device.driver.clone(),
        cudnn: device.cudnn.clone(),
        simulated: false,
    }
}

/// Which part of a card this is: the driver calls it `NVIDIA H100 80GB HBM3 MIG 1g.10gb` then.
fn profile(gpu: &str) -> Option<String> {
    let (_, profile) = gpu.rsplit_once(" MIG ")?;
    Some(profile.to_owned())
}

/// Simulated cards, numbered as real ones.
pub fn simulated_cards(cards: &[&Card]) -> Vec<AgentCard> {
    let cards = cards.iter().enumerate().map(|(number, card)| {
        let (major, minor) = card.capability.compute;
        AgentCard {
            device: format!("cuda:{number}"),
            kind: Some(card.name.to_owned()),
            gpu: card.product.to_owned(),
            memory_bytes: card.total_memory.0,
            usable_bytes: Some(card.available().0),
            compute_capability: Some(format!("{major}.{minor}")),
            multiprocessors: u32::try_from(card.capability.multiprocessors).ok(),
            simulated: true,
            ..AgentCard::default()
        }
    });
    cards.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_card_is_known_by_its_name() {
        assert_eq!(
            profile("NVIDIA H100 80GB HBM3 MIG 1g.10gb").as_deref(),
            Some("1g.10gb")
        );
        assert_eq!(profile("NVIDIA H100 80GB HBM3"), None);
    }

    #[test]
    fn simulated_cards_are_numbered_as_real_ones() {
        let kinds = ["h100-80g", "l4"].map(|kind| Card::find(kind).unwrap());
        let cards = simulated_cards(&kinds);

        let devices: Vec<&str> = cards.iter().map(|card| card.device.as_str()).collect();
        assert_eq!(devices, ["cuda:0", "cuda:1"]);
        assert!(cards.iter().all(|card| card.simulated));
    }
}
