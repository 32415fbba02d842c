use serde_json::json;

use super::*;
use crate::members::REQUEST;

fn read(lengths: &Value) -> Result<Lengths, RequestError> {
    let request = json!({ "lengths": lengths });
    let fields = Fields::of_object(&request, "", &REQUEST).unwrap();
    Lengths::read(&fields).map(Option::unwrap)
}

fn seq_len(lengths: &Value) -> Vec<(u64, u64)> {
    let read = read(&json!({ "seq_len": lengths })).unwrap();
    let pair = |one: &LengthCount| (one.length.sides()[0], one.count);
    read.each.iter().map(pair).collect()
}

#[test]
fn a_list_a_range_and_a_histogram_are_read_as_text_and_as_json() {
    let three = vec![(64, 100), (128, 50), (512, 3)];

    assert_eq!(seq_len(&json!("64:100,128:50,512:3")), three);
    assert_eq!(seq_len(&json!({"512": 3, "64": 100, "128": 50})), three);
    assert_eq!(seq_len(&json!([512, 64])), [(64, 1), (512, 1)]);
    assert_eq!(
        seq_len(&json!("16-32:8, 100")),
        [(16, 1), (24, 1), (32, 1), (100, 1)]
    );
    assert_eq!(seq_len(&json!("7-9")), [(7, 1), (8, 1), (9, 1)]);
    assert_eq!(seq_len(&json!(64)), [(64, 1)]);
}

#[test]
fn a_length_that_is_named_twice_counts_twice() {
    assert_eq!(seq_len(&json!([64, 128, 64])), [(64, 2), (128, 1)]);
    assert_eq!(seq_len(&json!("64:5,64")), [(64, 6)]);
}

#[test]
fn lengths_are_rounded_up_to_a_multiple() {
    let read = read(&json!({"seq_len": "1-20", "multiple_of": 8})).unwrap();

    let counted = read.each.iter().map(|one| (one.length, one.count));
    assert_eq!(
        counted.collect::<Vec<_>>(),
        [
            (Length::One(8), 8),
            (Length::One(16), 8),
            (Length::One(24), 4)
        ]
    );
}

#[test]
fn images_have_two_sides() {
    let read = read(&json!({"image_size": ["224x320", 224, [320, 224], [160, 160]]})).unwrap();

    let lengths: Vec<String> = read.each.iter().map(|one| one.length.to_string()).collect();
    assert_eq!(lengths, ["160", "224", "224x320", "320x224"]);
    assert_eq!(read.longest().units(read.of), 320 * 224);
}

#[test]
fn what_is_no_length_is_told_with_what_would_be_right() {
    for line in include_str!("refused.txt").lines() {
        let (lengths, expected) = line.split_once(" => ").unwrap();
        let (place, more) = expected.split_once(" ... ").unwrap();

        let refused = read(&serde_json::from_str(lengths).unwrap()).unwrap_err();

        let told = refused.to_string();
        assert!(told.starts_with(place), "{lengths}: {told}");
        assert!(told.contains(more), "{lengths}: {told}");
    }
}
