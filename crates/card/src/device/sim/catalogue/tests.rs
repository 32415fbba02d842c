use super::*;

#[test]
fn names_are_unique_and_lower_case() {
    let mut names: Vec<_> = CARDS.iter().map(|card| card.name).collect();
    names.sort_unstable();
    names.dedup();

    assert_eq!(names.len(), CARDS.len());
    assert!(names.iter().all(|name| *name == name.to_lowercase()));
}

/// What a multiprocessor does in a clock as is generally known of its architecture: multiplications with additions in float32, and in float16
/// with sums in float32, of which `GeForce` cards, L40 and A10G do half as many.
fn per_clock(card: &Card) -> (f64, f64) {
    let is_halved = card.product.contains("GeForce") || ["l40", "a10g"].contains(&card.name);
    let halved = if is_halved { 2.0 } else { 1.0 };
    match card.capability.compute {
        (10, _) => (128.0, 4096.0),
        (9, 0) => (128.0, 2048.0),
        (8, 0) => (64.0, 1024.0),
        (8 | 12, _) => (128.0, 512.0 / halved),
        _ => (64.0, 512.0 / halved),
    }
}

/// Cards whose tensor cores do less by their pages than at the boost clock of the others, and how much at least.
const SLOWER: [(&str, f64); 11] = [
    ("h200", 0.92),
    ("h200-nvl", 0.86),
    ("b300", 0.89),
    ("b200", 0.92),
    ("gb200", 0.97),
    ("gh200-144g", 0.92),
    ("gh200-96g", 0.92),
    ("h100-80g", 0.92),
    ("h100-pcie", 0.92),
    ("h100-nvl", 0.86),
    // Export rules left a quarter.
    ("h20", 0.23),
];

/// Whether a figure is another within 3 %.
fn near(found: f64, expected: f64) -> bool {
    (found / expected - 1.0).abs() < 0.03
}

#[test]
fn ceilings_are_what_multiprocessors_and_clocks_give() {
    for card in CARDS.iter() {
        let (plain, tensors) = per_clock(card);
        let count = f64::from(u32::try_from(card.capability.multiprocessors).unwrap());
        let clocks = 2e6 * count * f64::from(card.sheet.boost_mhz);
        let (name, ceilings) = (card.name, card.ceilings);

        assert!(near(ceilings.fp32, plain * clocks), "{name}");
        let slower = SLOWER.iter().find(|(slower, _)| *slower == name);
        let share = ceilings.fp16 / (tensors * clocks);
        let least = slower.map_or(0.97, |(_, least)| *least);
        assert!((least..1.03).contains(&share), "{name}: {share}");
        let (tf32, bf16) = match card.capability.compute {
            (8.., _) => (ceilings.fp16 / 2.0, ceilings.fp16),
            _ => (ceilings.fp32, ceilings.fp32),
        };
        assert!(near(ceilings.tf32, tf32), "{name}: {tf32}");
        assert!(near(ceilings.bf16, bf16), "{name}: {bf16}");
    }
}

#[test]
fn bandwidth_is_what_the_bus_and_its_data_rate_give() {
    for card in CARDS.iter() {
        let bandwidth = f64::from(card.sheet.bus) * card.sheet.rate * 1e9 / 8.0;
        let found = card.ceilings.bandwidth;
        assert!(near(found, bandwidth), "{}: {bandwidth}", card.name);
    }
}

#[test]
fn cards_have_no_more_multiprocessors_than_their_chip() {
    for card in CARDS.iter() {
        let ((major, minor), whole) = card.sheet.chip.whole();
        let count = card.capability.multiprocessors;
        assert!((whole / 3..=whole).contains(&count), "{}", card.name);
        let (its_major, its_minor) = card.capability.compute;
        assert_eq!(its_major, major, "{}", card.name);
        assert!(its_minor >= minor, "{}", card.name);
    }
}

#[test]
fn pages_are_addresses() {
    for card in CARDS.iter() {
        let pages = [Some(card.sheet.page), card.sheet.throughput];
        for page in pages.into_iter().flatten() {
            assert!(page.starts_with("https://"), "{}: {page}", card.name);
        }
    }
}

/// "Technical Specifications per Compute Capability" of the CUDA programming guide.
#[test]
fn multiprocessors_hold_the_threads_of_their_architecture() {
    for card in CARDS.iter() {
        let threads = match card.capability.compute {
            (7, 5) => 1024,
            (8, 6 | 9) | (12, _) => 1536,
            _ => 2048,
        };
        let found = card.capability.threads_per_multiprocessor;
        assert_eq!(found, threads, "{}", card.name);
    }
}

/// A driver keeps 0.3 % to 8 % of what the box says.
#[test]
fn names_with_a_size_are_of_cards_with_nearly_that_much_memory() {
    for card in CARDS.iter() {
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
    assert_eq!(on(Some("NVIDIA GRID"), 81_079), "h100-80g");
    assert_eq!(on(None, 143_156), "h200");
    assert_eq!(Card::recorded_on(None, None).name, "h200");
}

#[test]
fn the_page_of_cards_has_all_of_them() {
    let page = include_str!("../../../../../../docs/use/cards.md");

    for card in CARDS.iter() {
        let name = format!("`{}`", card.name);
        assert!(page.contains(&name), "{name}");
    }
}

/// What they are held against: see `ops::reduce::scratch`.
#[test]
fn how_pytorch_splits_reductions_was_recorded_for_every_card() {
    let recorded = include_str!("../../../../../../tests/golden/reductions/cards.txt");

    for card in CARDS.iter() {
        let Capability {
            compute: (major, minor),
            multiprocessors,
            threads_per_multiprocessor,
        } = card.capability;
        let line = format!("{major}.{minor} {multiprocessors} {threads_per_multiprocessor} ");
        let is_there = recorded.lines().any(|it| it.starts_with(&line));
        assert!(is_there, "{}: {line}", card.name);
    }
}
