//! What models teach about others.

use super::*;

/// What the misses of reporters of models teach others, in thousandths.
fn taught_others(told: &[(&str, &str, u32)]) -> Option<u32> {
    let mut models: BTreeMap<&str, Told> = BTreeMap::new();
    for (model, reporter, asks) in told {
        let learnt = HeadroomModel::begin(FLOOR);
        let by = BTreeMap::from([((*reporter).to_owned(), (Share(0), Share(asks * 1_000)))]);
        let one = Told { learnt, by };
        let known = models.entry(model).or_insert_with(|| one.clone());
        known.also(&one);
    }
    of_others(
        models
            .into_iter()
            .collect::<Vec<_>>()
            .iter()
            .map(|(model, told)| (*model, told)),
    )
    .map(|share| share.0 / 1_000)
}

#[test]
fn two_models_teach_others_what_two_keys_ask_for() {
    // Where no keys are needed.
    assert_eq!(taught_others(&[]), None);
    assert_eq!(taught_others(&[("m1", "", 36)]), None);
    assert_eq!(taught_others(&[("m1", "", 36), ("m2", "", 5)]), None);
    assert_eq!(taught_others(&[("m1", "", 36), ("m2", "", 18)]), Some(18));
    assert_eq!(taught_others(&[("m1", "", 150), ("m2", "", 150)]), Some(50));

    let lies = ["m1", "m2", "m3", "m4"].map(|model| (model, "liar", 200));
    assert_eq!(taught_others(&lies), None);
    let and =
        |more: &[(&'static str, &'static str, u32)]| taught_others(&[&lies[..], more].concat());
    assert_eq!(and(&[("m5", "a", 16)]), Some(16));
    // What is said of models that another said more of first hides nothing.
    assert_eq!(and(&[("m1", "a", 41), ("m2", "b", 43)]), Some(43));
    assert_eq!(
        taught_others(&[("m1", "a", 43), ("m2", "b", 41), ("m2", "a", 41)]),
        Some(41)
    );
    // Two keys that tell of one model may be right about that.
    assert_eq!(
        taught_others(&[("m1", "a", 60), ("m1", "b", 60), ("m1", "c", 90)]),
        None
    );
    // One key's agent is behind both.
    assert_eq!(
        taught_others(&[("m1", "a/agent", 60), ("m2", "b/agent", 60)]),
        None
    );
    assert_eq!(
        taught_others(&[("m1", "a/agent", 60), ("m2", "agent", 60)]),
        None
    );
    assert_eq!(
        taught_others(&[("m1", "a/agent", 60), ("m2", "b/other", 40)]),
        Some(40)
    );
}
