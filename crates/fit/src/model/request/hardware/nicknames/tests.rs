use super::*;

fn card_and_count(text: &str) -> (&'static str, Option<u64>) {
    let on = parse(text).unwrap();
    (on.card.name, on.count)
}

#[test]
fn case_and_dashes_and_makers_are_forgiven() {
    for (text, card) in [
        ("h200", "h200"),
        ("sim:h200", "h200"),
        ("RTX-4090", "rtx4090"),
        ("rtx 4090", "rtx4090"),
        ("4090", "rtx4090"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("A100_80GB", "a100-80g"),
        ("a100-80", "a100-80g"),
        ("NVIDIA A100-SXM4-40GB", "a100-40g"),
        ("nvidia h100 80gb hbm3", "h100-80g"),
        (" T4 ", "t4"),
    ] {
        assert_eq!(card_and_count(text), (card, None), "{text}");
    }
}

#[test]
fn every_card_answers_to_its_name_and_its_product() {
    for card in CARDS.iter() {
        assert_eq!(card_and_count(card.name).0, card.name);
        let by_product = Card::find(card_and_count(card.product).0).unwrap();
        assert_eq!(by_product.product, card.product);
    }
}

#[test]
fn a_family_is_its_member_with_the_least_memory() {
    let on = parse("A100").unwrap();

    assert_eq!(on.card.name, "a100-40g");
    let note = on.note.unwrap();
    assert!(
        note.contains("A100 means a100-40g") && note.contains("a100-80g"),
        "{note}"
    );
    assert_eq!(parse("h100").unwrap().card.name, "h100-80g");
}

#[test]
fn of_members_with_as_much_memory_the_first_is_the_usual_one() {
    assert_eq!(card_and_count("h100").0, "h100-80g");
    assert_eq!(card_and_count("gh200").0, "gh200-96g");
    assert_eq!(card_and_count("RTX 3080").0, "rtx3080-10g");
    assert_eq!(
        card_and_count("NVIDIA GeForce RTX 4060 Ti").0,
        "rtx4060ti-8g"
    );
    assert!(
        parse("h100")
            .unwrap()
            .note
            .unwrap()
            .ends_with("others are h100-pcie, h100-nvl")
    );
}

#[test]
fn common_spellings_of_workstation_cards_are_known() {
    for (text, card) in [
        ("a6000", "rtxa6000"),
        ("RTX A6000", "rtxa6000"),
        ("6000ada", "rtx6000ada"),
        ("RTX 6000 Ada", "rtx6000ada"),
        ("RTX PRO 6000", "rtxpro6000"),
        ("TITAN RTX", "titanrtx"),
        ("5070 Ti", "rtx5070ti"),
        ("rtx 4080 super", "rtx4080super"),
        ("H100 PCIe", "h100-pcie"),
        ("RTX 3060", "rtx3060-12g"),
        ("rtx-3080-12gb", "rtx3080-12g"),
        ("rtx-3090-24gb", "rtx3090"),
        ("RTX 8000", "quadrortx8000"),
        ("NVIDIA GeForce RTX 4070 Ti", "rtx4070ti"),
        ("RTX4070Ti", "rtx4070ti"),
        ("4070 Ti SUPER", "rtx4070tisuper"),
        ("rtx4070tisuper 16gb", "rtx4070tisuper"),
        ("RTX 4070 SUPER", "rtx4070super"),
        ("NVIDIA GeForce RTX 4090 D", "rtx4090d"),
        ("RTX 5060", "rtx5060"),
        ("5060 Ti 16GB", "rtx5060ti-16g"),
        ("RTX 2080", "rtx2080"),
        ("4090 mobile", "rtx4090-laptop"),
        ("rtx4060m", "rtx4060-laptop"),
        ("RTX PRO 6000 Max-Q", "rtxpro6000-maxq"),
        ("Tesla V100-PCIE-16GB", "v100-pcie-16g"),
        ("a100 80 GB sxm", "a100-80g"),
        ("H200 NVL", "h200-nvl"),
        ("h100 sxm5", "h100-80g"),
        // An S behind a number is the Super's, where there is one and no count makes it a plural.
        ("RTX 4080S", "rtx4080super"),
        ("4070 ti s 16gb", "rtx4070tisuper"),
        ("2060S", "rtx2060super"),
        ("l40s pcie", "l40s"),
        ("A30 PCI-E", "a30"),
        ("RTX 4090 PCIe 24GB", "rtx4090"),
        ("h200 pcie", "h200-nvl"),
        ("h100 pcie 94gb", "h100-nvl"),
        ("RTX 8000 48GB", "quadrortx8000"),
        ("RTX 4050 6GB", "rtx4050-laptop"),
        ("4090 mobile laptop", "rtx4090-laptop"),
        ("6000 blackwell", "rtxpro6000"),
        ("RTX 6000 Blackwell Server Edition", "rtxpro6000-server"),
        ("rtx 5000 blackwell 48gb", "rtxpro5000"),
    ] {
        assert_eq!(card_and_count(text), (card, None), "{text}");
    }
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

#[test]
fn a_size_is_the_card_with_the_least_of_it() {
    for (text, card) in [
        ("24GB", "l4"),
        ("24564MiB", "l4"),
        ("16 gb vram", "t4"),
        ("20GB", "rtx4000ada"),
        ("6gb", "rtx2060-6g"),
        ("sm_89,16GB,34sm", "rtx4060ti-16g"),
    ] {
        assert_eq!(card_and_count(text), (card, None), "{text}");
    }
    let note = |text| parse(text).unwrap().note.unwrap();
    assert!(note("RTX 5060 Ti").contains("rtx5060ti-8g"));
}

#[test]
fn machines_of_clouds_are_their_cards() {
    assert_eq!(card_and_count("p5.48xlarge"), ("h100-80g", Some(8)));
    assert_eq!(card_and_count("2xp4d.24xlarge"), ("a100-40g", Some(16)));
    assert_eq!(
        card_and_count("Standard_NC80adis_H100_v5"),
        ("h100-nvl", Some(2))
    );
    let note = parse("g5.12xlarge").unwrap().note;
    assert_eq!(note.unwrap(), "g5.12xlarge: 4 x NVIDIA A10G");
    let refused = parse("p5.24xlarge").unwrap_err().to_string();
    assert!(
        refused.contains("of its kind there are p5.4xlarge, p5.48xlarge"),
        "{refused}"
    );
}

#[test]
fn a_number_before_it_counts_gpus() {
    assert_eq!(card_and_count("8xH100"), ("h100-80g", Some(8)));
    assert_eq!(card_and_count("2 x rtx-4090"), ("rtx4090", Some(2)));
    assert_eq!(card_and_count("4×t4"), ("t4", Some(4)));
    for text in [
        "8 h100",
        "h100x8",
        "H100 x8",
        "H100:8",
        "2x4xh100",
        "4 x 2 h100",
    ] {
        assert_eq!(card_and_count(text), ("h100-80g", Some(8)), "{text}");
    }
    for text in ["3090x2", "2x3090", "rtx 3090 x2"] {
        assert_eq!(card_and_count(text), ("rtx3090", Some(2)), "{text}");
    }
    for (text, card, count) in [
        ("2x RTX 3090 NVLink", "rtx3090", 2),
        ("4 x a100 80gb sxm", "a100-80g", 4),
        ("A100-SXM4-80GB x 8", "a100-80g", 8),
        ("8x H100 SXM5 (80GB)", "h100-80g", 8),
        ("4xA100 PCIe", "a100-pcie-40g", 4),
        ("4 3090s", "rtx3090", 4),
        ("8xL40S", "l40s", 8),
        ("2x RTX A6000s", "rtxa6000", 2),
        ("2*T4", "t4", 2),
        ("2 titan rtx", "titanrtx", 2),
        ("4 colab t4", "t4", 4),
        ("4 t4", "t4", 4),
        ("2080 ti x 4", "rtx2080ti", 4),
        ("3060 12gb x2", "rtx3060-12g", 2),
        ("RTX 3090 Ti:2", "rtx3090ti", 2),
        ("H100-SXM80GB x 8", "h100-80g", 8),
        ("a100 8x", "a100-40g", 8),
        ("4090 2x", "rtx4090", 2),
        ("RTX 3060 12GB, 4×", "rtx3060-12g", 4),
    ] {
        assert_eq!(card_and_count(text), (card, Some(count)), "{text}");
    }
}

#[test]
fn what_is_no_card_is_refused() {
    for (text, expected) in [
        ("", "lacks the name of a card"),
        ("8x", "lacks the name of a card"),
        ("--", "lacks the name of a card"),
        ("0xH100", "0 is no number of GPUs"),
        ("99999999999999999999xh100", "is no number of GPUs"),
        ("h2000", "did you mean \"h200\"?"),
        ("rxt4090", "did you mean \"rtx4090\"?"),
        ("cuda:0", "--device cuda:0"),
        ("auto", "--device auto"),
        ("ä100", "unknown card"),
        ("-8xh100", "unknown card"),
        ("8", "unknown card"),
        ("2x4080s", "unknown card"),
        ("4080s x2", "unknown card"),
        ("2060s 6gb", "of that number there are"),
        ("4060s", "of that number there"),
        ("h100 0x", "0 is no number of GPUs"),
        ("rx 7900x", "only NVIDIA's cards"),
        ("a100 sxm pcie", "of that number there are"),
        ("l40s sxm", "of that number there are"),
        ("b200 pcie", "of that number there is b200"),
        ("RTX 8000 24GB", "unknown card"),
        ("RTX 4050 8GB", "unknown card"),
        ("6000 blackwell 48gb", "unknown card"),
        ("titan rtx titan rtx", "unknown card"),
        ("3080 x 12GB", "unknown card"),
        ("NVIDIA A800-SXM4-40GB", "unknown card"),
        ("H100-SXM64GB", "unknown card"),
        ("h100 hbm364gb", "unknown card"),
        // Another amount of memory, or a word that is true of no such card.
        ("3060 8gb", "nearest with its 8 GB: `--on rtx3060ti`"),
        ("4090 48gb", "of that number there is rtx4090"),
        (
            "3080 20gb",
            "of that number there are rtx3080-12g, rtx3080-10g",
        ),
        ("2x2080 ti 22gb", "of that number there are"),
        ("5080 super", "of that number there is rtx5080"),
        (
            "4080 ti super",
            "of that number there are rtx4080super, rtx4080",
        ),
        (
            "RTX 4060 Ti laptop",
            "has less memory than the desktop card",
        ),
        ("rtx 6000", "several cards are called so"),
        ("a100 pcie sxm", "of that number there are"),
        ("4090 l40s", "of that number there"),
        ("8h100", "did you mean \"8xh100\"?"),
        ("gpusgpusgpusgpusgpusgpusgpusgpus40", "unknown card"),
        (
            "63GB",
            "none is sold with 63 GB; nearest: `--on h100-pcie --memory-limit 62GiB`",
        ),
        (
            "Tesla P100-PCIE-16GB",
            "nearest with its 16 GB: `--on v100-16g`",
        ),
        ("💥", "lacks the name of a card"),
    ] {
        let refused = parse(text).unwrap_err().to_string();
        assert!(refused.contains(expected), "{text:?}: {refused}");
    }
}
