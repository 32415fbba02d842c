//! Searches that are told from outside: the first line is what is looked for, the others are observations. A search always goes
//! on or has ended, and what it says follows from what it was told.
#![no_main]

use batchfit::search::ask_tell::{AskTell, Observation, SearchRequest};
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|text: &str| {
    let mut lines = text.lines().map(serde_json::from_str::<Value>);
    let Some(Ok(first)) = lines.next() else {
        return;
    };
    let Ok(terms) = SearchRequest::parse(&first) else {
        return;
    };
    let mut search = AskTell::new(terms.clone());
    for line in lines.take(100).flatten() {
        if let Ok(observation) = Observation::parse(&line) {
            search.tell(observation);
        }
        let said = search.says(None);
        if let Some(next) = said.next_batch {
            assert!((1..=terms.ceiling()).contains(&next), "proposes {next}");
        }
    }
    let again = AskTell::of(terms, search.observations().to_vec());
    assert_eq!(again.says(None), search.says(None));
});
