//! Suggestions as commands to paste: what was typed, with the flags that a change is.

use std::collections::HashSet;
use std::fmt::Write as _;

use serde_json::Value;

use super::super::arguments::{pasted, typed};
use crate::jobs::FitResult;
use crate::model::Mode;

/// Most commands that are written.
const MOST: usize = 4;

/// Whether changes are not tried yet that could help, where nothing fits.
pub(super) fn is_asked_for(result: &FitResult) -> bool {
    let trains = result
        .variants
        .first()
        .is_some_and(|one| !one.training.recorded && one.training.mode == Mode::Train);
    let is_plain =
        result.lengths.is_none() && result.soak.is_none() && result.suggested_for.is_none();
    trains && is_plain && result.environment.device.starts_with("sim:")
}

/// The suggestions that reach what is wanted.
pub(super) fn to_paste(result: &FitResult) -> String {
    let reaching = result.suggestions.iter();
    let mut reaching: Vec<_> = reaching
        .filter(|one| one.reaches && one.micro_batch > 0)
        .collect();
    // A list of modules is long to paste.
    reaching.sort_by_key(|one| {
        one.patch
            .pointer("/training/checkpointing/modules")
            .is_some()
    });
    // One of each kind first: of four optimizers that reach it, three say little more.
    let mut kinds = HashSet::new();
    let (first, more): (Vec<_>, Vec<_>) = reaching
        .into_iter()
        .partition(|one| kinds.insert(members(&one.patch)));
    let card = result.environment.device.trim_start_matches("sim:");
    let mut text = String::new();
    for one in first.into_iter().chain(more).take(MOST) {
        let first = if text.is_empty() { "\nTo paste\n" } else { "" };
        let _ = write!(
            text,
            "{first}  # {}\n  {}\n",
            one.change,
            command(&one.patch, card)
        );
    }
    text
}

/// The members that a change sets.
fn members(patch: &Value) -> Vec<String> {
    let of = |name: &str| patch.get(name).and_then(Value::as_object);
    let inner = ["training", "model"].into_iter().filter_map(of);
    let outer = patch.as_object().into_iter();
    outer
        .chain(inner)
        .flat_map(|it| it.keys().cloned())
        .collect()
}

/// What was typed, with a change.
fn command(patch: &Value, card: &str) -> String {
    let at = |pointer: &str| patch.pointer(pointer).filter(|value| !value.is_null());
    let plain = |value: &Value| {
        value
            .as_str()
            .map_or_else(|| value.to_string(), str::to_owned)
    };
    let mut dropped = vec!["--suggest", "--document"];
    let mut added: Vec<String> = Vec::new();
    let flags: [(&str, &str, &[&str]); 6] = [
        ("/training/precision", "--precision", &["--amp"]),
        ("/training/optimizer", "--optimizer", &["--optimizer-impl"]),
        ("/training/optimizer_impl", "--optimizer-impl", &[]),
        ("/training/checkpointing", "--checkpoint", &[]),
        ("/model/seq_len", "--seq-len", &[]),
        ("/allocator", "--allocator", &[]),
    ];
    for (pointer, flag, others) in flags {
        if let Some(value) = at(pointer) {
            dropped.push(flag);
            dropped.extend(others);
            let globs = value.get("modules").and_then(Value::as_array);
            let globs = globs.map(|globs| globs.iter().map(plain).collect::<Vec<_>>().join("+"));
            let value = globs.map_or_else(|| plain(value), |globs| format!("modules:{globs}"));
            added.extend([flag.to_owned(), value]);
        }
    }
    let mut members = Vec::new();
    for member in ["loss_chunks", "lora", "param_dtype"] {
        if let Some(value) = at(&format!("/model/{member}")) {
            members.push(member);
            added.extend(["--with".to_owned(), format!("{member}={}", plain(value))]);
        }
    }
    let is_changed = |with: &str| {
        with.split_once('=')
            .is_some_and(|(name, _)| members.contains(&name))
    };
    let card = at("/device")
        .and_then(Value::as_str)
        .map_or(card, |device| device.trim_start_matches("sim:"));
    if at("/device").is_some() && at("/training/parallel").is_none() {
        dropped.extend(["--on", "--device"]);
        added.extend(["--on".to_owned(), card.to_owned()]);
    }
    if let Some(parallel) = at("/training/parallel") {
        dropped.extend([
            "--on",
            "--device",
            "--world-size",
            "--parallel",
            "--cpu-offload",
        ]);
        let count = parallel["world_size"].as_u64().unwrap_or(1);
        added.extend([
            "--on".to_owned(),
            format!("{count}x{card}"),
            "--parallel".to_owned(),
            plain(&parallel["strategy"]),
        ]);
        added.extend((parallel["cpu_offload"] == true).then(|| "--cpu-offload".to_owned()));
    }
    let mut words = vec!["batchfit".to_owned()];
    let mut rest = typed().iter().skip(1).peekable();
    while let Some(word) = rest.next() {
        if word == "--with" && rest.peek().is_some_and(|with| is_changed(with)) {
            rest.next();
        } else if word.strip_prefix("--with=").is_some_and(is_changed) {
        } else if !dropped.contains(&word.split('=').next().unwrap_or(word)) {
            words.push(word.clone());
        } else if !word.contains('=') && *word != "--cpu-offload" && *word != "--suggest" {
            rest.next();
        }
    }
    words.extend(added);
    pasted(&words)
}
