//! The drawing: the same document gives the same bytes.

use batchfit::replay::ReplayOptions;
use batchfit::report::replay_svg;

use super::report;

#[test]
fn a_small_replay_is_drawn() {
    let report = report(
        "traces/trace-cifarnet-fp32-sgd-b3900.txt.gz",
        &ReplayOptions::default(),
    );

    insta::assert_snapshot!(replay_svg(&report));
}

#[test]
fn every_drawing_names_what_it_shows() {
    for name in [
        "traces/trace-gpt2-ampbf16-adamw-b10.txt.gz",
        "snapshots/overrun-expandable.pickle.gz",
    ] {
        let svg = replay_svg(&report(name, &ReplayOptions::default()));

        for text in [
            "peak reserved",
            "peak allocated",
            "events of the recording",
            "GiB",
            "free, cached",
        ] {
            let is_small = name.starts_with("snapshots");
            let text = if is_small && text == "GiB" {
                "MiB"
            } else {
                text
            };
            assert!(svg.contains(text), "{name}: {text}");
        }
        assert!(
            svg.starts_with("<svg ") && svg.ends_with("</svg>\n"),
            "{name}"
        );
    }
}
