use std::collections::BTreeSet;

use serde_json::Value;

use super::*;
use crate::members::Member;
use batchfit_step::{Optimizer, OptimizerImpl, Precision};

#[test]
fn every_word_is_there_once_and_leads_to_one_of_ours() {
    let ours: BTreeSet<&str> = Precision::ALL
        .map(Precision::name)
        .into_iter()
        .chain(Optimizer::ALL.map(Optimizer::name))
        .chain(OptimizerImpl::ALL.map(OptimizerImpl::name))
        .chain([
            "none",
            "per_block",
            "train",
            "inference",
            "auto",
            "probes",
            "ddp",
        ])
        .chain(["float32", "bfloat16", "float16", "eager", "sdpa"])
        .chain(["flash_attention_2", "flash_attention_3"])
        .chain(["causal_lm", "masked_lm", "question_answering"])
        .chain(["sequence_classification", "token_classification"])
        .chain(["all-linear"])
        .collect();
    let mut seen = BTreeSet::new();
    let mut is_other = |word: &'static str| {
        assert!(seen.insert(word), "{word} is there twice");
        assert_eq!(normal(word), word, "it would never be found");
        for place in RequestObject::ALL {
            assert!(!place.names().any(|field| field == word), "{word} is ours");
        }
    };
    let rows = RequestObject::ALL
        .into_iter()
        .flat_map(RequestObject::members);
    rows.flat_map(Member::synonyms).for_each(&mut is_other);
    for (words, meaning) in names() {
        words.split(' ').for_each(&mut is_other);
        match meaning {
            Synonym::Switch(on, off) => {
                let place = RequestObject::Training;
                for written in [on, off] {
                    let object: Value = serde_json::from_str(&format!("{{{written}}}")).unwrap();
                    for (field, value) in object.as_object().unwrap() {
                        assert!(place.names().any(|known| known == field), "{field}");
                        assert!(
                            value.as_str().is_none_or(|word| ours.contains(word)),
                            "{value}"
                        );
                    }
                }
            }
            Synonym::Advice(_) => {}
        }
    }
    let mut seen = BTreeSet::new();
    for (what, words, meaning) in values::all() {
        for word in words.split(' ') {
            assert!(seen.insert((what, word)), "{what} {word} is there twice");
            assert_eq!(normal(word), word, "it would never be found");
        }
        if let ValueSynonym::Is(word) = meaning {
            assert!(ours.contains(word), "{word}");
        }
    }
}
