use super::*;

/// What people call cards, and which those are: names, cards and, where they say it, how many of them.
#[test]
fn names_are_cards_and_numbers_count_them() {
    let rows = include_str!("called.txt").lines();
    for line in rows.filter(|line| !line.starts_with('#')) {
        let row: Vec<&str> = line.split('|').collect();
        let on = parse(row[0]).unwrap();
        assert_eq!(on.card.name, row[1], "{line}");
        assert_eq!(on.count, row.get(2).map(|it| it.parse().unwrap()), "{line}");
    }
}

/// What is no card, and what its error has in it.
#[test]
fn what_is_no_card_is_refused() {
    let rows = include_str!("refused.txt").lines();
    for line in rows.filter(|line| !line.starts_with('#')) {
        let (text, expected) = line.split_once('|').unwrap();
        let refused = parse(text).unwrap_err().to_string();
        assert!(refused.contains(expected), "{text:?}: {refused}");
    }
}

#[test]
fn every_card_answers_to_its_name_and_its_product() {
    for card in CARDS.iter() {
        let on = parse(card.name).unwrap();
        assert_eq!((on.card.name, on.count, on.note), (card.name, None, None));
        assert_eq!(parse(card.product).unwrap().card.product, card.product);
    }
}

#[test]
fn a_name_that_stands_for_several_cards_or_a_machine_says_which() {
    let note = |text| parse(text).unwrap().note.unwrap();
    assert!(note("A100").contains("A100 means a100-40g"));
    assert!(note("A100").contains("a100-80g"));
    assert!(note("h100").ends_with("others are h100-pcie, h100-nvl"));
    assert!(note("RTX 5060 Ti").contains("rtx5060ti-8g"));
    assert_eq!(note("g5.12xlarge"), "g5.12xlarge: 4 x NVIDIA A10G");
}

#[test]
fn what_nvidia_smi_prints_of_a_card_is_read() {
    for card in CARDS.iter() {
        let memory = card.total_memory.0.div_ceil(1 << 30) << 10;
        let line = format!("{}, {memory} MiB", card.product);
        let header = format!("name, memory.total [MiB]\n{line}\n");
        for text in [&line, &header] {
            let read = parse(text).unwrap().card;
            assert!(is_sold_with(read, memory >> 10), "{text}: {}", read.name);
            assert_eq!(read.product, card.product, "{text}");
        }
        let two = format!("{line}\n{line}");
        assert!(parse(&two).is_err(), "{two}");
    }
}
