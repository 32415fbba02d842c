//! What of a card's memory a request gets.

use crate::alloc::Settings;
use crate::device::sim::CardMemory;
use crate::fitting::engine::{MemoryBudget, requested_limit};
use crate::model::{Ddp, FullyShard, Parallel, Request, RequestDocument};
use crate::units::Bytes;

const TOTAL: Bytes = Bytes::gib(16);

#[test]
fn a_fraction_is_of_all_memory_and_may_be_an_allocator_setting() {
    let request = |text: &str| {
        let document = RequestDocument::from_json(text.as_bytes()).unwrap();
        Request::parse(document).unwrap()
    };
    let memory = CardMemory {
        total: TOTAL,
        available: AVAILABLE,
    };
    let model = r#""model": {"preset": "resnet18"}, "device": "sim:t4""#;
    let none = request(&format!("{{{model}}}"));
    let half = request(&format!(r#"{{{model}, "memory_limit": "0.5"}}"#));
    let quarter: Settings = "per_process_memory_fraction:0.25".parse().unwrap();

    let limit = |request: &_, settings: &_| requested_limit(request, settings, memory);
    assert_eq!(limit(&none, &Settings::default()), None);
    assert_eq!(limit(&half, &quarter), Some(Bytes::gib(8)));
    assert_eq!(limit(&none, &quarter), Some(Bytes::gib(4)));
}

const AVAILABLE: Bytes = Bytes::gib(15);

fn budget_of(asked: Option<Bytes>) -> MemoryBudget {
    MemoryBudget {
        asked,
        available: AVAILABLE,
        is_of_rank: false,
    }
}

fn limited(asked: Option<Bytes>) -> (Bytes, bool) {
    let alone = Parallel::None;
    let room = budget_of(asked);
    let note = room.note([&alone].into_iter());
    (room.limit(&alone), note.is_some())
}

#[test]
fn what_is_asked_for_counts_up_to_what_is_available_and_more_is_said() {
    assert_eq!(limited(None), (AVAILABLE, false));
    assert_eq!(limited(Some(Bytes::gib(8))), (Bytes::gib(8), false));
    assert_eq!(limited(Some(Bytes::gib(16))), (AVAILABLE, true));
}

#[test]
fn each_strategy_pays_for_its_own_messages_and_one_gpu_for_none() {
    let ddp = Parallel::Ddp(Ddp {
        world_size: 2,
        ..Ddp::default()
    });
    let sharded = Parallel::Fsdp2(FullyShard {
        world_size: 2,
        ..FullyShard::default()
    });
    let left = |parallel: &Parallel| AVAILABLE.saturating_sub(budget_of(None).limit(parallel));

    assert_eq!(left(&Parallel::None), Bytes::ZERO);
    assert_eq!(left(&ddp), Bytes::mib(1613 - 780));
    assert_eq!(left(&sharded), Bytes::mib(1609 - 780));
    let measured = MemoryBudget {
        is_of_rank: true,
        ..budget_of(None)
    };
    assert_eq!(measured.limit(&ddp), AVAILABLE);
    let asked = budget_of(Some(AVAILABLE));
    assert!(asked.note([&Parallel::None, &ddp].into_iter()).is_some());
}
