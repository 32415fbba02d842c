use super::*;

#[test]
fn names_are_unique_and_lower_case() {
    let mut names: Vec<_> = CARDS.iter().map(|card| card.name).collect();
    names.sort_unstable();
    names.dedup();

    assert_eq!(names.len(), CARDS.len());
    assert!(names.iter().all(|name| *name == name.to_lowercase()));
}

/// The published boost clocks, in GHz: of the ordinary units, and of tensor cores where those run at another.
const BOOST: [(&str, f64, f64); 54] = [
    // Tensor cores of Hopper run at 1.83 GHz, the others at 1.98 (<https://glennklockwood.com/garden/processors/h100>).
    ("h200", 1.98, 1.83),
    ("b300", 1.98, 1.86),
    ("b200", 1.98, 1.86),
    ("gb200", 2.06, 2.01),
    ("gh200-144g", 1.98, 1.83),
    ("gh200-96g", 1.98, 1.83),
    ("h100-80g", 1.98, 1.83),
    ("h100-pcie", 1.755, 1.62),
    ("h100-nvl", 1.785, 1.545),
    // Of its tensor cores, export rules left what others do at less than half a gigahertz.
    ("h20", 1.98, 0.463),
    ("a100-80g", 1.41, 1.41),
    ("a100-40g", 1.41, 1.41),
    ("a100-pcie-80g", 1.41, 1.41),
    ("a100-pcie-40g", 1.41, 1.41),
    ("a30", 1.44, 1.44),
    ("l40s", 2.52, 2.49),
    ("l40", 2.49, 2.49),
    ("l4", 2.04, 2.04),
    ("a40", 1.74, 1.74),
    ("a10", 1.695, 1.695),
    ("a10g", 1.71, 1.71),
    ("t4", 1.59, 1.59),
    ("v100-32g", 1.53, 1.53),
    ("v100-16g", 1.53, 1.53),
    ("rtxpro6000", 2.617, 2.617),
    ("rtx6000ada", 2.505, 2.505),
    ("rtxa6000", 1.8, 1.8),
    ("rtxa5000", 1.695, 1.695),
    ("rtxa4000", 1.56, 1.56),
    ("quadrortx8000", 1.77, 1.77),
    ("titanrtx", 1.77, 1.77),
    ("rtx5090", 2.407, 2.407),
    ("rtx5080", 2.617, 2.617),
    ("rtx5070ti", 2.452, 2.452),
    ("rtx5070", 2.512, 2.512),
    ("rtx5060ti-16g", 2.572, 2.572),
    ("rtx4090", 2.52, 2.52),
    ("rtx4080super", 2.55, 2.55),
    ("rtx4080", 2.505, 2.505),
    ("rtx4070tisuper", 2.61, 2.61),
    ("rtx4070", 2.475, 2.475),
    ("rtx4060ti-16g", 2.535, 2.535),
    ("rtx4060ti-8g", 2.535, 2.535),
    ("rtx4060", 2.46, 2.46),
    ("rtx3090ti", 1.86, 1.86),
    ("rtx3090", 1.695, 1.695),
    ("rtx3080ti", 1.665, 1.665),
    ("rtx3080-12g", 1.71, 1.71),
    ("rtx3080-10g", 1.71, 1.71),
    ("rtx3070ti", 1.77, 1.77),
    ("rtx3070", 1.725, 1.725),
    ("rtx3060ti", 1.665, 1.665),
    ("rtx3060-12g", 1.777, 1.777),
    ("rtx2080ti", 1.545, 1.545),
];

/// What a multiprocessor does in a clock by its architecture's white paper: multiplications with additions in float32, and in float16
/// with sums in float32, of which `GeForce` cards, L40 and A10G do half as many.
fn per_clock(card: &Card) -> (f64, f64) {
    let is_halved = geforce::CARDS.contains(card) || ["l40", "a10g"].contains(&card.name);
    let halved = if is_halved { 2.0 } else { 1.0 };
    match card.capability.compute {
        (10, _) => (128.0, 4096.0),
        (9, 0) => (128.0, 2048.0),
        (8, 0) => (64.0, 1024.0),
        (8 | 12, _) => (128.0, 512.0 / halved),
        _ => (64.0, 512.0 / halved),
    }
}

#[test]
fn ceilings_are_what_multiprocessors_and_clocks_give() {
    let named: Vec<&str> = BOOST.iter().map(|(name, _, _)| *name).collect();
    assert_eq!(named, names());
    for (name, clock, clock_of_tensors) in BOOST {
        let card = Card::find(name).unwrap();
        let (plain, tensors) = per_clock(card);
        let count = f64::from(u32::try_from(card.capability.multiprocessors).unwrap());
        let near = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.04;
        let ceilings = card.ceilings;

        let fp32 = plain * 2e9 * count * clock;
        assert!(near(ceilings.fp32, fp32), "{name}: {fp32}");
        let half = tensors * 2e9 * count * clock_of_tensors;
        assert!(near(ceilings.fp16, half), "{name}: {half}");
        let (tf32, bf16) = match card.capability.compute {
            (8.., _) => (half / 2.0, half),
            _ => (fp32, fp32),
        };
        assert!(near(ceilings.tf32, tf32), "{name}: {tf32}");
        assert!(near(ceilings.bf16, bf16), "{name}: {bf16}");
    }
}

/// The programming guide's table of compute capabilities: resident threads of a multiprocessor.
#[test]
fn multiprocessors_hold_the_threads_of_their_architecture() {
    for card in CARDS {
        let threads = match card.capability.compute {
            (7, 5) => 1024,
            (8, 6 | 9) | (12, _) => 1536,
            _ => 2048,
        };
        assert_eq!(
            card.capability.threads_per_multiprocessor, threads,
            "{}",
            card.name
        );
    }
}

/// A driver keeps 0.3 % to 8 % of what the box says.
#[test]
fn names_with_a_size_are_of_cards_with_nearly_that_much_memory() {
    for card in CARDS {
        let size = card.name.rsplit('-').next().unwrap();
        let Some(Ok(size)) = size.strip_suffix('g').map(str::parse::<u64>) else {
            continue;
        };
        // An A100 of 80 GB has 80 GiB, an H100 nearly so; an H200's share of the box is in units of 1,000.
        let box_says = Bytes::mib(size << 10);
        let share = card.total_memory.0 * 1000 / box_says.0;
        assert!((920..=1000).contains(&share), "{}: {share}", card.name);
    }
}

#[test]
fn only_the_card_that_was_measured_answers_without_a_note() {
    let silent: Vec<_> = CARDS
        .iter()
        .filter(|card| card.notes().is_empty())
        .map(|card| card.name)
        .collect();

    assert_eq!(silent, ["h200"]);
}

#[test]
fn the_whole_h200_is_its_memory_less_what_a_process_holds() {
    let h200 = Card::find("h200").unwrap();

    assert_eq!(h200.available(), Bytes(149_291_991_040));
}

#[test]
fn what_was_recorded_is_taken_to_be_of_the_card_that_is_named_so() {
    let on = |product, mib: u64| Card::recorded_on(product, Some(Bytes::mib(mib))).name;

    // A TITAN RTX has nearly as much memory.
    assert_eq!(on(Some("NVIDIA GeForce RTX 4090"), 24_211), "rtx4090");
    assert_eq!(on(Some("NVIDIA GeForce RTX 3080"), 10_009), "rtx3080-10g");
    assert_eq!(on(Some("NVIDIA GeForce RTX 3080"), 12_040), "rtx3080-12g");
    assert_eq!(on(Some("NVIDIA GRID"), 81_089), "h100-80g");
    assert_eq!(on(None, 143_156), "h200");
    assert_eq!(Card::recorded_on(None, None).name, "h200");
}

#[test]
fn the_page_of_cards_has_all_of_them() {
    let page = include_str!("../../../../docs/cards.md");

    for card in CARDS {
        let row = format!("| `{}` | {} | ", card.name, card.product);
        let line = page.lines().find(|line| line.starts_with(&row));
        assert!(line.unwrap().contains(card.source), "{}", card.name);
    }
    let instances = crate::device::sim::clouds();
    for instance in instances.iter().flat_map(|(_, instances)| *instances) {
        assert!(
            page.contains(&format!("`{}`", instance.name)),
            "{}",
            instance.name
        );
    }
}
