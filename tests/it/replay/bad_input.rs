//! Files that are refused: with the line or key, and what was expected there.

use std::fmt::Write as _;

use batchfit::replay::pickle::{Bounds as PickleBounds, Pickle};
use batchfit::replay::{Bounds, read};

use super::{decompressed, golden, recording};

const HEADER: &str = "# {\"total\": 25769803776, \"limit\": 4294967296, \"alloc_conf\": \"\"}\n";

fn refused(bytes: &[u8]) -> String {
    recording(bytes).unwrap_err().to_string()
}

#[test]
fn traces_that_contradict_themselves_are_refused_with_their_line() {
    let segment = "segment_alloc 7f0000000000 2097152 0\n";
    let alloc = "alloc 7f0000000000 1024 0\n";
    let free = "free_requested 7f0000000000 1024 0\nfree_completed 7f0000000000 1024 0\n";
    let cases = [
        ("freed twice", format!("{segment}{alloc}{free}{free}")),
        ("never allocated", format!("{segment}{free}")),
        ("allocated twice", format!("{segment}{alloc}{alloc}")),
        (
            "freed at another size",
            format!("{segment}{alloc}free_requested 7f0000000000 512 0\n"),
        ),
        (
            "completed without a request",
            format!("{segment}{alloc}free_completed 7f0000000000 1024 0\n"),
        ),
        (
            "size of 2^63",
            format!("{segment}alloc 7f0000000000 9223372036854775808 0\n"),
        ),
        (
            "size past 2^64",
            format!("{segment}alloc 7f0000000000 18446744073709551616 0\n"),
        ),
        ("size of zero", format!("{segment}alloc 7f0000000000 0 0\n")),
        (
            "end past 2^64",
            "segment_alloc ffffffffffffff00 2097152 0\n".to_owned(),
        ),
        (
            "overlapping segments",
            format!("{segment}segment_alloc 7f0000100000 2097152 0\n"),
        ),
        (
            "unknown segment",
            "segment_free 7f0000000000 2097152 0\n".to_owned(),
        ),
        (
            "more than the device",
            "segment_alloc 7f0000000000 30000000000 0\n".to_owned(),
        ),
        (
            "unknown action",
            "allocate 7f0000000000 1024 0\n".to_owned(),
        ),
        ("cut off in a line", format!("{segment}alloc 7f00000")),
        ("no address", "alloc here 1024 0\n".to_owned()),
        ("no events", String::new()),
    ];
    let mut answers = String::new();

    for (what, lines) in cases {
        let _ = writeln!(
            answers,
            "{what}: {}",
            refused(format!("{HEADER}{lines}").as_bytes())
        );
    }

    insta::assert_snapshot!(answers);
}

#[test]
fn headers_are_refused_with_their_key() {
    let event = "segment_alloc 7f0000000000 2097152 0\n";
    let cases = [
        "segment_alloc 7f0000000000 2097152 0",
        "# {\"total\": 25769803776,",
        "# action addr size stream",
        "# {\"limit\": 4294967296}",
        "# {\"total\": \"24GiB\"}",
        "# {\"total\": -1}",
        "# {\"total\": 9223372036854775808}",
        "# {\"total\": 25769803776, \"alloc_conf\": \"expandable_segment:True\"}",
        "# {\"total\": 25769803776, \"alloc_conf\": \"max_split_size_mb:10\"}",
        "# {\"total\": 25769803776, \"alloc_conf\": \"max_split_size_mb:32,max_split_size_mb:64\"}",
        "# {\"total\": 25769803776, \"alloc_conf\": \"backend:cudaMallocAsync\"}",
    ];
    let mut answers = String::new();

    for header in cases {
        let _ = writeln!(
            answers,
            "{header}\n    {}",
            refused(format!("{header}\n{event}").as_bytes())
        );
    }

    insta::assert_snapshot!(answers);
}

#[test]
fn files_that_are_damaged_or_something_else_are_refused() {
    let compressed = golden("snapshots/overrun.pickle.gz");
    let pickle = decompressed("snapshots/overrun.pickle.gz");
    let replaced = |from: &[u8], to: &[u8]| {
        let at = pickle
            .windows(from.len())
            .position(|part| part == from)
            .unwrap();
        [&pickle[..at], to, &pickle[at + from.len()..]].concat()
    };
    let cases: [(&str, Vec<u8>); 9] = [
        ("empty", Vec::new()),
        ("an archive", b"PK\x03\x04\x14\x00".to_vec()),
        ("gzip cut off", compressed[..compressed.len() / 2].to_vec()),
        ("pickle cut off", pickle[..pickle.len() / 2].to_vec()),
        ("another key", replaced(b"device_traces", b"device_tracks")),
        ("another member", replaced(b"total_size", b"total_wise")),
        (
            "another action",
            replaced(b"free_completed", b"free_competent"),
        ),
        (
            "another state",
            replaced(b"active_allocated", b"active_allocate!"),
        ),
        ("a list instead", b"\x80\x04]\x94.".to_vec()),
    ];
    let mut answers = String::new();

    for (what, bytes) in cases {
        let _ = writeln!(answers, "{what}: {}", refused(&bytes));
    }

    insta::assert_snapshot!(answers);
}

#[test]
fn pickles_that_would_execute_something_are_refused_by_opcode() {
    let cases: [(&str, &[u8]); 8] = [
        ("os.system", b"\x80\x02cos\nsystem\nX\x02\x00\x00\x00lsR."),
        ("by the stack", b"\x80\x04\x8c\x02os\x8c\x06system\x93."),
        ("call", b"\x80\x04NNR."),
        ("new object", b"\x80\x04N)\x81."),
        ("persistent id", b"\x80\x04NQ."),
        ("extension", b"\x80\x02\x82\x01."),
        ("protocol 0", b"\x80\x02I1\n."),
        ("protocol 6", b"\x80\x06N."),
    ];
    let mut answers = String::new();

    for (what, bytes) in cases {
        let _ = writeln!(answers, "{what}: {}", refused(bytes));
    }

    insta::assert_snapshot!(answers);
}

#[test]
fn what_a_file_makes_its_reader_use_is_bounded() {
    let bounds = Bounds {
        mib: 1,
        events: 100,
        pickle: PickleBounds {
            bytes: 1 << 20,
            depth: 8,
        },
    };
    let zeros = vec![0; 2 << 20];
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    std::io::Write::write_all(&mut bomb, &zeros).unwrap();
    let error = |bytes: &[u8]| read(bytes, bounds).unwrap_err().to_string();

    assert_eq!(
        error(&bomb.finish().unwrap()),
        "the file is larger than 1 MiB, decompressed"
    );
    assert!(error(&decompressed("snapshots/overrun.pickle.gz")).contains("more than 100 events"));
    assert!(
        error(&decompressed("traces/trace-cifarnet-fp32-sgd-b512.txt.gz"))
            .contains("more than 100 events")
    );
    let deep = [&[0x80, 4][..], &[b'('; 100]].concat();
    assert!(error(&deep).contains("at most 8"));
    let many = [&[0x80, 4][..], &vec![b']'; 20_000]].concat();
    assert!(error(&many).contains("more than 1024 KiB"));
    // Who runs the program on a file of theirs may take more, but for what the file has in it.
    let brackets = [&[0x80, 4][..], &vec![b']'; 4 << 20]].concat();
    let own = read(&brackets, Bounds::default()).unwrap_err();
    assert!(own.to_string().contains("more than 32768 KiB"), "{own}");
}

/// A pickle's text, number, `list` and `dict`.
fn text(text: &str) -> Vec<u8> {
    let length = u32::try_from(text.len()).unwrap().to_le_bytes();
    [b"X", &length[..], text.as_bytes()].concat()
}

fn number(number: i32) -> Vec<u8> {
    [b"J", &number.to_le_bytes()[..]].concat()
}

fn list(parts: &[Vec<u8>]) -> Vec<u8> {
    [b"](", parts.concat().as_slice(), b"e"].concat()
}

fn dict(members: &[(&str, Vec<u8>)]) -> Vec<u8> {
    let members = members
        .iter()
        .flat_map(|(key, value)| [text(key), value.clone()]);
    [b"}(", members.collect::<Vec<_>>().concat().as_slice(), b"u"].concat()
}

#[test]
fn what_is_named_again_and_again_is_looked_at_once() {
    let place = |size: &'static str| [("address", number(4096)), (size, number(512))];
    let block = [
        ("requested_size", number(512)),
        ("state", text("active_allocated")),
    ];
    let block = dict(&[&place("size")[..], &block].concat());
    let segment = [
        ("device", number(0)),
        ("stream", number(0)),
        ("segment_type", text("small")),
        ("blocks", list(&[block])),
    ];
    // Kept as number 0, and named again.
    let segment = [
        dict(&[&place("total_size")[..], &segment].concat()),
        b"q\0".to_vec(),
    ]
    .concat();
    let again = b"h\0".to_vec();
    let event = |action: &str| {
        let event = [
            ("action", text(action)),
            ("size", number(512)),
            ("addr", number(4096)),
            ("stream", number(0)),
        ];
        dict(&event)
    };
    let trace = |action: &str| ("device_traces", list(&[list(&[event(action)])]));
    let devices = ("device_traces", list(&vec![list(&[event("alloc")]); 121]));
    let segments = |segments: &[Vec<u8>]| ("segments", list(segments));
    let many = vec![("other", number(0)); 64];
    let refused = |members: &[(&str, Vec<u8>)]| {
        refused(&[b"\x80\x02", dict(members).as_slice(), b"."].concat())
    };

    let twice = refused(&[trace("alloc"), segments(&[segment.clone(), again])]);
    assert!(
        twice.contains("segments at 1000 and 1000 overlap"),
        "{twice}"
    );
    let devices = refused(&[devices, segments(&[])]);
    assert!(
        devices.contains("121 devices; expected at most 120"),
        "{devices}"
    );
    let long = refused(&[trace(&"x".repeat(5_000)), segments(&[])]);
    assert!(long.contains("a very long str; expected a str"), "{long}");
    let first = refused(&[&[trace("alloc"), segments(&[segment])], &many[..]].concat());
    assert!(first.contains("there is no `device_traces`"), "{first}");
}

#[test]
fn shared_values_are_one_value() {
    // f = [{"n": 1}]; {"a": f, "b": f}
    let bytes = b"\x80\x04\x95\x1a\x00\x00\x00\x00\x00\x00\x00}\x94(\x8c\x01a\x94]\x94}\x94\x8c\x01n\x94K\x01sa\x8c\x01b\x94h\x02u.";

    let pickle = Pickle::read(bytes, PickleBounds::default()).unwrap();

    let batchfit::replay::pickle::Value::Map(members) = pickle.value(pickle.root()) else {
        panic!("{:?}", pickle.value(pickle.root()));
    };
    assert_eq!(pickle.member(members, "a"), pickle.member(members, "b"));
    assert!(pickle.member(members, "a").is_some());
}

/// How much an error may say, and how long the words of the recordings are that it is about.
const LONGEST_ERROR: usize = 2 << 10;
const WORD: usize = 1 << 17;

#[test]
fn errors_of_recordings_repeat_no_long_words() {
    let word = "w".repeat(WORD);
    let segment = "segment_alloc 7f0000000000 2097152 0\n";
    let mut files: Vec<Vec<u8>> = Vec::new();
    for line in [
        format!("{word} 7f0000000000 1024 0"),
        format!("alloc {word} 1024 0"),
        format!("alloc 7f0000000000 {word} 0"),
        format!("alloc 7f0000000000 1024 {word}"),
        word.clone(),
    ] {
        files.push(format!("{HEADER}{segment}{line}\n").into_bytes());
    }
    for header in [
        format!("{{\"total\": \"{word}\"}}"),
        format!("{{\"total\": 1, \"case\": [\"{word}\"]}}"),
        format!("{{\"total\": 1, \"{word}\": 1}}"),
        format!("{{\"total\": 1, \"alloc_conf\": \"{word}\"}}"),
        format!("{{\"total\": 1}} {word}"),
        word.clone(),
    ] {
        files.push(format!("# {header}\n{segment}").into_bytes());
    }
    for (key, value) in [
        ("", ""),
        ("backend:", ""),
        ("roundup_power2_divisions:[1:", "]"),
    ] {
        let settings = format!("{key}{}{value}", "w".repeat(4000));
        let header = format!("# {{\"total\": 1, \"alloc_conf\": \"{settings}\"}}");
        files.push(format!("{header}\n{segment}").into_bytes());
    }
    files.extend(snapshots_with(&word));
    for file in files {
        let error = refused_or_read(&file);
        let start: String = error.chars().take(200).collect();
        assert!(
            error.len() < LONGEST_ERROR,
            "{} bytes: {start}",
            error.len()
        );
    }
}

/// The error; or what a recording that is read has to say for itself.
fn refused_or_read(bytes: &[u8]) -> String {
    match recording(bytes) {
        Err(error) => error.to_string(),
        Ok(read) => format!("{:?} {:?}", read.case, read.notes),
    }
}

/// A snapshot with this word in the place of each of its texts, one at a time.
fn snapshots_with(word: &str) -> Vec<Vec<u8>> {
    let framed = decompressed("snapshots/overrun.pickle.gz");
    // Without its one frame, whose length would change: protocol, FRAME and eight bytes of length.
    assert_eq!(framed[..3], [0x80, 4, 0x95]);
    let pickle = [&framed[..2], &framed[11..]].concat();
    assert!(recording(&pickle).is_ok());
    let length = u32::try_from(word.len()).unwrap().to_le_bytes();
    let mut seen = std::collections::HashSet::new();
    let mut files = Vec::new();
    for at in 0..pickle.len() - 2 {
        let (opcode, size) = (pickle[at], usize::from(pickle[at + 1]));
        let end = at + 2 + size;
        // SHORT_BINUNICODE with its text, memoized.
        if opcode != 0x8c || pickle.get(end) != Some(&0x94) || !seen.insert(&pickle[at + 2..end]) {
            continue;
        }
        files.push(
            [
                &pickle[..at],
                b"X",
                &length,
                word.as_bytes(),
                &pickle[end..],
            ]
            .concat(),
        );
    }
    assert!(files.len() > 20, "{}", files.len());
    files
}

#[test]
fn a_long_name_of_a_recording_is_shortened() {
    let header = format!(
        "# {{\"total\": 25769803776, \"case\": \"{}\"}}",
        "w".repeat(1 << 20)
    );
    let trace = format!("{header}\nsegment_alloc 7f0000000000 2097152 0\n");

    let read = recording(trace.as_bytes()).unwrap();

    assert_eq!(read.case, Some(format!("{}…", "w".repeat(60))));
}
