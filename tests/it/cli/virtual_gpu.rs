//! `batchfit run`: commands that use no GPU, and lines that a virtual GPU would say.

mod commands;

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Output;

use batchfit::device::sim::Card;
use batchfit::probe::Verdict;
use batchfit::report::{Style, virtual_gpu, virtual_gpu_markdown};
use batchfit::store::Db;
use batchfit::units::Bytes;
use batchfit::virtual_gpu::{Answer, Ending, Listener, Oracle, Session};

use super::{Sandbox, stderr, stdout};

pub(crate) fn session(name: &str) -> Session {
    Session {
        card: Card::find(name).unwrap(),
        gpus: 1,
        limit: None,
        cuda: 13_000,
        steps: 3,
        host_memory: Bytes::gib(8),
        keeps_history: false,
        launches: None,
    }
}

/// What came of lines that one process says.
pub(crate) fn answer(session: &Session, lines: &[&str], ending: Ending) -> Option<Answer> {
    answer_of(session, &[lines], ending)
}

/// What came of lines that each process says.
fn answer_of(session: &Session, processes: &[&[&str]], ending: Ending) -> Option<Answer> {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let listener = Listener::start(&socket, Oracle::of(session.card)).unwrap();
    for lines in processes {
        let mut stream = UnixStream::connect(&socket).unwrap();
        // A listener that had enough closes the connection.
        let _ = stream.write_all((lines.join("\n") + "\n").as_bytes());
    }
    let heard = listener.finish();
    Answer::of(
        vec!["python".to_owned(), "train.py".to_owned()],
        session,
        &heard,
        ending,
        false,
    )
}

pub(crate) const START: &str = r#"report	{"kind": "start", "script": "train.py", "python": "3.12.1", "torch": "2.11.0", "cuda": "13.0", "cudnn": 91900, "allocator": "", "modules": {"trl": "1.16.0"}}"#;

/// A step that ends with so many MiB allocated.
fn step(number: u64, left: u64) -> String {
    let [peak, left, reserved] = [900_u64 << 20, left << 20, 1 << 30];
    format!(
        r#"report	{{"kind": "phase", "name": "step {number}", "steps": {number}, "devices": [[0, {peak}, {reserved}, {left}, {reserved}, 0]]}}"#
    )
}

#[test]
fn a_session_says_what_the_card_is() {
    let session = Session {
        gpus: 8,
        limit: None,
        ..session("h100-80g")
    };

    let text = session.text(Path::new("/tmp/x"));

    let read = batchfit_vgpu::config::parse(&text).unwrap();
    assert_eq!(read.card.memory, 85_017_493_504);
    assert_eq!(read.devices, 8);
    insta::assert_snapshot!(text);
}

#[test]
fn caches_are_those_that_pytorch_says_of_a_card() {
    let cache = |card| {
        let text = session(card).text(Path::new("/tmp/x"));
        batchfit_vgpu::config::parse(&text).unwrap().card.l2_cache
    };
    assert_eq!(["h100-80g", "h200"].map(cache), [50 << 20, 60 << 20]);
}

#[test]
fn a_script_that_fits_is_told_with_its_phases_and_what_was_guessed() {
    let steps = [step(1, 300), step(2, 310), step(3, 320), step(4, 330)];
    let lines = [
        "hello\t12\t",
        START,
        "malloc\t0\t1073741824\t0x1000000000",
        &steps[0],
        &steps[1],
        &steps[2],
        &steps[3],
        "doubt\t1\ttrain.py:12 if mask.any():",
        "assumed\tmultinomial",
        "unanswered\tcusolverDnXgeev",
        "nonsense",
        "malloc\tnot\ta\tnumber",
        r#"report	{"kind": "peak", "device": 0, "phase": "step 1", "stack": [], "module": null}"#,
        r#"report	{"kind": "peak", "device": 0, "phase": "step 2", "stack": ["train.py:31 forward", "train.py:90 <module>"], "module": "backward of layers.3.mlp"}"#,
        r#"report	{"kind": "peak", "device": 1, "phase": "step 1", "stack": [], "module": null}"#,
        r#"report	{"kind": "end", "how": "steps", "steps": 4}"#,
    ];

    let mut answer = answer(&session("h200"), &lines, Ending::Exit(0)).unwrap();

    assert_eq!(answer.growth_bytes_per_step, Some(10 << 20));
    insta::assert_snapshot!(virtual_gpu(&answer, &Style::default()));
    assert!(
        virtual_gpu_markdown(&answer)
            .starts_with("# `python train.py` fits on h200 (virtual).\n\n```text\n")
    );
    let long = "x".repeat(100);
    answer.command = vec![format!("a`<img>\n# \u{202e}{long}")];
    let headline = format!("# `a'<img> # \u{fffd}{long}` fits on h200 (virtual).\n\n```text\n");
    assert!(virtual_gpu_markdown(&answer).starts_with(&headline));
}

#[test]
fn memory_that_runs_out_is_told_with_the_lines_that_asked() {
    let lines = [
        "hello\t12\t0",
        START,
        r#"report	{"kind": "out_of_memory", "phase": "step 1", "device": 0, "requested": 2147483648, "free": 1, "allocated": 21474836480, "reserved": 22548578304, "stack": ["train.py:31 forward", "train.py:90 <module>"], "module": "layers.3.mlp"}"#,
        r#"report	{"kind": "error", "type": "OutOfMemoryError", "message": "CUDA out of memory. Tried to allocate 2.00 GiB.", "out_of_memory": true}"#,
        r#"report	{"kind": "end", "how": "exit", "steps": 0}"#,
    ];
    let session = Session {
        gpus: 2,
        ..session("rtx4090")
    };

    let answer = answer(&session, &lines, Ending::Exit(1)).unwrap();

    insta::assert_snapshot!(virtual_gpu(&answer, &Style::default()));
}

#[test]
fn a_process_that_ran_out_beside_another_is_told_whatever_the_shell_says() {
    let holds = "malloc\t0\t17179869184\t0x1000000000";
    let ranks = [0, 1].map(|rank| format!("hello\t{}\t{rank}", 12 + rank));
    let one = [&*ranks[0], "visible\t1\t0", START, holds];
    let other = [
        &ranks[1],
        "visible\t1\t0",
        START,
        "malloc\t0\t1073741824\t0x1000000000",
        "refused\t0\t17179869184\t1891631104\t17997758464",
        r#"report	{"kind": "out_of_memory", "phase": "start", "device": 0, "requested": 17179869184, "allocated": 0, "reserved": 0, "stack": ["two.py:3 <module>"]}"#,
        r#"report	{"kind": "error", "type": "OutOfMemoryError", "message": "CUDA out of memory.", "out_of_memory": true}"#,
        r#"report	{"kind": "end", "how": "exit", "steps": 0}"#,
    ];
    let session = Session {
        gpus: 2,
        ..session("rtx4090")
    };

    let answer = answer_of(&session, &[&one, &other], Ending::Exit(0)).unwrap();

    assert_eq!(answer.verdict, Verdict::OutOfMemory);
    insta::assert_snapshot!(virtual_gpu(&answer, &Style::default()));
}

/// A script that halves its batch until it fits, within a share of the card that it allows itself.
#[test]
fn errors_that_a_script_caught_do_not_count_for_what_it_ran_with() {
    let steps: Vec<String> = (1..=12)
        .map(|number| {
            step(number, 300).replace(", 0]]", ", 19]]").replace(
                "943718400",
                if number == 8 {
                    "996147200"
                } else {
                    "943718400"
                },
            )
        })
        .collect();
    let refused = r#"report	{"kind": "out_of_memory", "phase": "step 8", "device": 0, "requested": 2147483648, "free": 1, "allocated": 996147200, "reserved": 1073741824, "retries": 19, "stack": []}"#;
    let mut lines = vec![
        "hello\t12\t",
        START,
        "workspace\tasked",
        "workspace\trecorded",
    ];
    lines.extend([
        "assumed\tchoices of aten::argmax",
        "assumed\tchoices of aten::eq",
        "assumed\tchoices of aten::gt",
        "assumed\tchoices of aten::lt",
        "assumed\tchoices of aten::ne",
    ]);
    lines.push("assumed\thow many aten::nonzero finds\t1\tBATCHFIT_VGPU_FOUND=1");
    lines.extend(steps[..7].iter().map(String::as_str));
    lines.push(refused);
    lines.extend(steps[7..].iter().map(String::as_str));
    lines.extend([
        r#"report	{"kind": "peak", "device": 0, "phase": "step 8", "stack": [], "module": null}"#,
        r#"report	{"kind": "end", "how": "exit", "steps": 12, "fraction": 0.5}"#,
    ]);

    let answer = answer(&session("h200"), &lines, Ending::Exit(0)).unwrap();

    assert_eq!(answer.verdict, Verdict::Fits);
    insta::assert_snapshot!(virtual_gpu(&answer, &Style::default()));
}

/// Every batch runs out of memory and is skipped, or one that is small enough comes at last.
#[test]
fn a_script_that_skips_what_does_not_fit_and_trains_nothing_does_not_fit() {
    let refused = r#"report	{"kind": "out_of_memory", "phase": "start", "device": 0, "requested": 34359738368, "allocated": 0, "reserved": 0, "stack": []}"#;
    let malloc = "malloc\t0\t1073741824\t0x1000000000";
    let end = r#"report	{"kind": "end", "how": "exit", "steps": 0}"#;
    for (last, expected) in [(refused, Verdict::OutOfMemory), (malloc, Verdict::Fits)] {
        let lines = ["hello\t12\t", START, malloc, refused, last, end];
        let answer = answer(&session("h200"), &lines, Ending::Exit(0)).unwrap();
        assert_eq!(answer.verdict, expected, "{last}");
    }
    // `python train.py | tee log`
    let error = r#"report	{"kind": "error", "type": "OutOfMemoryError", "message": "CUDA out of memory.", "out_of_memory": true}"#;
    let (one, end) = (
        step(1, 300),
        r#"report	{"kind": "end", "how": "exit", "steps": 1}"#,
    );
    let lines = ["hello\t12\t", START, malloc, &one, refused, error, end];
    let answer = answer(&session("h200"), &lines, Ending::Exit(0)).unwrap();
    assert_eq!(answer.verdict, Verdict::OutOfMemory);
}

#[test]
fn a_script_that_took_no_memory_has_no_answer() {
    let lines = [
        "hello\t12\t",
        START,
        r#"report	{"kind": "end", "how": "exit", "steps": 0}"#,
    ];

    assert!(answer(&session("h200"), &lines, Ending::Exit(0)).is_none());
    assert!(answer(&session("h200"), &lines, Ending::Exit(1)).is_some());
}

#[test]
fn convolutions_are_answered_as_simulations_have_them() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let listener = Listener::start(&socket, Oracle::of(Card::find("h200").unwrap())).unwrap();
    let mut stream = BufReader::new(UnixStream::connect(&socket).unwrap());
    let mut ask = |fields: &str| {
        writeln!(
            stream.get_mut(),
            "convolution\t{}",
            fields.replace(' ', "\t")
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_line(&mut answer).unwrap();
        answer
            .split_once('\t')
            .map(|(how, _)| how.to_owned())
            .unwrap()
    };

    // ResNet's first layer; the same call as the gradient of a transposed layer; nonsense.
    let stem = "float32 32 3 64 1 1,224,224 1,7,7 1,2,2 0,3,3 1,1,1 0 0,0,0 0 0";
    assert_eq!(ask(&format!("forward {stem}")), "recorded");
    let other = "float32 32 64 3 1 1,112,112 1,7,7 1,2,2 0,3,3 1,1,1 1 0,1,1 0 0";
    assert_eq!(ask(&format!("grad_input {other}")), "recorded");
    for nonsense in [
        "",
        "forward",
        "forward float32 0 3 64 1 1,1,1 1,1,1 0,0,0 0,0,0 1,1,1 0 0,0,0 0 0",
    ] {
        assert_eq!(ask(nonsense), "none", "{nonsense:?}");
    }
    drop(stream);
    listener.finish();
}

#[test]
fn a_convolution_counts_as_what_its_memory_is_known_by() {
    let said = [
        "recorded",
        "interpolated",
        "asked",
        "asked",
        "estimated",
        "none",
    ];
    let said = said.map(|how| format!("workspace\t{how}"));
    let mut lines = vec!["hello\t12\t0", START, "malloc\t0\t2097152\t0x1000000000"];
    lines.extend(said.iter().map(String::as_str));

    let answer = answer(&session("h200"), &lines, Ending::Exit(0)).unwrap();

    let counts = answer.convolutions;
    assert_eq!((counts.recorded, counts.asked, counts.estimated), (2, 2, 2));
}

#[test]
fn a_line_that_never_ends_is_not_waited_for() {
    let long = "x".repeat(1 << 20);
    assert!(answer(&session("t4"), &[&long, START], Ending::Exit(0)).is_none());
}

#[test]
fn all_that_was_said_is_heard_and_a_connection_that_stays_open_is_not_waited_for() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder.path().join("socket");
    let session = session("t4");
    let listener = Listener::start(&socket, Oracle::of(session.card)).unwrap();
    let mut streams: Vec<UnixStream> = (0..20)
        .map(|_| UnixStream::connect(&socket).unwrap())
        .collect();
    for stream in &mut streams {
        for number in 0..1000 {
            let said = format!("assumed\tit\t{number}\n");
            stream.write_all(said.as_bytes()).unwrap();
        }
        stream.write_all(b"unanswered\tcuLast\n").unwrap();
    }
    let heard = format!("{:?}", listener.finish());
    assert!(heard.contains("cuLast") && heard.contains("999"), "{heard}");
    drop(streams);
}
