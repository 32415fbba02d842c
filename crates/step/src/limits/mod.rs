//! Bounds on what reading a document may take, and on what errors repeat of it.
//!
//! A few bytes of JSON can become many in memory: `{},` is three in the text and a hundred as a value. So what
//! is read from a document is charged to an account while it is being read, and reading ends when the account is
//! empty. The account belongs to the thread, because derived deserialization has no place to carry it along.

mod heap;
mod items;
mod value;

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde::de;

pub use self::heap::{Counted, measured};
pub use self::items::{List, Table, Text};
pub use self::value::{AnyValue, insert_once};

/// What reading a document may take beyond the document, in bytes; a larger document may take its own size.
///
/// An export of 100,000 operators takes 40 to 60 MiB.
pub const LEAST_ACCOUNT: usize = 64 << 20;

/// What an allocation takes besides its contents: two words, as in glibc's `malloc`.
const ALLOCATION: usize = 16;

/// How much an error repeats of a word of a document, in characters.
const LONGEST_WORD: usize = 60;

/// How much of a sentence with such words in it is kept at its beginning and at its end, in characters. The longest
/// of our own have a few hundred.
const SENTENCE: [usize; 2] = [700, 300];

/// The bound on graphs that a thread makes, if any.
#[derive(Debug, Clone, Copy)]
struct Growth {
    most: usize,
    largest: usize,
    /// What the graph may take of the heap, in bytes, and what [`heap::held`] was before it.
    bytes: usize,
    held_before: isize,
    is_full: bool,
    /// Whether an earlier graph was larger than it may be.
    was_outgrown: bool,
}

impl Growth {
    fn is_outgrown(self) -> bool {
        self.is_full || self.largest > self.most
    }
}

thread_local! {
    static GROWTH: Cell<Option<Growth>> = const { Cell::new(None) };
    static ACCOUNT: Cell<Option<Budget>> = const { Cell::new(None) };
    /// Becomes true when what this thread reads is not wanted any more.
    static CANCEL: RefCell<Option<Cancel>> = const { RefCell::new(None) };
    /// See [`pausing`].
    static PAUSE: RefCell<Option<Box<dyn Fn()>>> = const { RefCell::new(None) };
}

#[derive(Debug, Clone, Copy)]
struct Budget {
    left: usize,
    nodes_left: usize,
    names_left: usize,
    excess: Option<LimitExceeded>,
}

/// Which bound a document passed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LimitExceeded {
    /// It would take more memory than it may.
    Memory,
    /// It has more nodes.
    Nodes,
    /// They have more operands and results.
    Names,
    /// Not a bound of the document: reading was cancelled.
    Cancelled,
}

/// Most nodes of a graph. The largest models in use have a few tens of thousands.
pub const MOST_NODES: usize = 100_000;

/// Most operands and results of all nodes together. Convolutional nets have six for each node, most others three.
pub const MOST_NAMES: usize = 8 * MOST_NODES;

/// Runs `read` with an account of this many bytes; says which bound was passed, when one was.
pub fn with_budget<T>(bytes: usize, read: impl FnOnce() -> T) -> (T, Option<LimitExceeded>) {
    let account = Budget {
        left: bytes,
        nodes_left: MOST_NODES,
        names_left: MOST_NAMES,
        excess: None,
    };
    let outer = ACCOUNT.replace(Some(account));
    let read = read();
    let excess = ACCOUNT.replace(outer).and_then(|account| account.excess);
    (read, excess)
}

/// Runs `make`, which makes no graph of more than `most` nodes, operands, results and parameters, nor of more than `bytes` of the heap, where those are
/// counted; says whether one would have been larger. The first is known before the work is done, the second holds for whatever the first leaves out.
pub fn graphs_within<T>(most: usize, bytes: usize, make: impl FnOnce() -> T) -> (T, bool) {
    let outer = GROWTH.replace(Some(Growth {
        most,
        largest: 0,
        bytes,
        held_before: heap::held(),
        is_full: false,
        was_outgrown: false,
    }));
    let result = make();
    let growth = GROWTH.replace(outer);
    (
        result,
        growth.is_some_and(|growth| growth.was_outgrown || growth.is_outgrown()),
    )
}

/// Runs `work`, which calls `pause` often: as its graphs grow, and when it looks whether it was cancelled.
pub fn pausing<T>(pause: impl Fn() + 'static, work: impl FnOnce() -> T) -> T {
    let outer = PAUSE.replace(Some(Box::new(pause)));
    let result = work();
    PAUSE.replace(outer);
    result
}

fn pause() {
    PAUSE.with_borrow(|pause| pause.iter().for_each(|pause| pause()));
}

/// What a tensor of so many dimensions counts in the size of a graph: each is kept, and few models have more than four.
pub fn weight_of_rank(rank: usize) -> usize {
    rank.div_ceil(4).max(1)
}

/// Says that a graph begins: what this thread takes of the heap from here on is its, until the next one begins.
pub fn begin_graph() {
    if let Some(growth) = GROWTH.get() {
        let held_before = heap::held();
        GROWTH.set(Some(Growth {
            largest: 0,
            held_before,
            is_full: false,
            was_outgrown: growth.was_outgrown || growth.is_outgrown(),
            ..growth
        }));
    }
}

/// Says that a graph grows to this size. An error from where that is more than the thread may make: see [`graphs_within`].
pub fn grow(size: usize) -> Result<(), String> {
    pause();
    let Some(mut growth) = GROWTH.get() else {
        return Ok(());
    };
    growth.largest = growth.largest.max(size);
    growth.is_full |= heap::held() > growth.held_before.saturating_add_unsigned(growth.bytes);
    GROWTH.set(Some(growth));
    if !growth.is_outgrown() {
        return Ok(());
    }
    let than = if growth.is_full {
        "takes more memory to simulate than it may".to_owned()
    } else {
        let most = growth.most;
        format!(
            "has more than {most} operations, operands and parameters, the most that are simulated"
        )
    };
    Err(format!(
        "the model {than}; ask about fewer layers or experts, or for fewer tokens"
    ))
}

/// Runs `read`, whose reading ends soon after `cancel` becomes true; `None` when it was true at the end, and so perhaps
/// ended it.
pub fn with_cancel<T>(cancel: &Cancel, read: impl FnOnce() -> T) -> Option<T> {
    let outer = CANCEL.replace(Some(cancel.clone()));
    let read = read();
    CANCEL.replace(outer);
    (!cancel.is_cancelled()).then_some(read)
}

/// Asks work to stop: every clone is the same request. What takes long looks at it often, and then ends with an error.
#[derive(Debug, Clone)]
pub struct Cancel(Option<Arc<AtomicBool>>);

impl Cancel {
    /// For work that is never cancelled.
    pub const NEVER: Cancel = Cancel(None);

    /// Asks for the work to stop.
    pub fn cancel(&self) {
        debug_assert!(self.0.is_some(), "what is never cancelled was cancelled");
        if let Some(flag) = &self.0 {
            flag.store(true, Ordering::Relaxed);
        }
    }

    /// Whether it was asked to stop. Returns late where work has to pause: see [`pausing`].
    pub fn is_cancelled(&self) -> bool {
        pause();
        let flag = self.0.as_ref();
        flag.is_some_and(|flag| flag.load(Ordering::Relaxed))
    }
}

impl Default for Cancel {
    /// Nothing has asked yet.
    fn default() -> Cancel {
        Cancel(Some(Arc::default()))
    }
}

/// Cancels the work when it is dropped.
#[derive(Debug, Default)]
pub struct CancelOnDrop(pub Cancel);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

/// Whether what this thread reads was cancelled: see [`with_cancel`].
pub fn is_cancelled() -> bool {
    CANCEL.with_borrow(|cancel| cancel.as_ref().is_some_and(Cancel::is_cancelled))
}

/// A word of a document, short enough to repeat in a message, and without what [`is_hidden`].
pub fn shorten(word: &str) -> String {
    let (kept, rest) = match word.char_indices().nth(LONGEST_WORD) {
        None => (word, ""),
        Some((end, _)) => (&word[..end], "…"),
    };
    kept.replace(is_hidden, "\u{fffd}") + rest
}

/// Whether a terminal or a reader is led astray by it: control characters, and marks that turn the direction of writing.
pub fn is_hidden(c: char) -> bool {
    c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// A sentence about a document, short enough to read whatever words it repeats: of a long one, both ends.
pub fn shorten_sentence(sentence: impl Into<String>) -> String {
    let sentence = sentence.into();
    let [first, last] = SENTENCE;
    if sentence.char_indices().nth(first + last).is_none() {
        return sentence;
    }
    let end = |mut places: std::str::CharIndices<'_>| places.nth(first).map(|(end, _)| end);
    let start = sentence
        .char_indices()
        .rev()
        .nth(last - 1)
        .map(|(start, _)| start);
    match (end(sentence.char_indices()), start) {
        (Some(end), Some(start)) => format!("{} … {}", &sentence[..end], &sentence[start..]),
        _ => sentence,
    }
}

/// What is wrong with a document by its reader, without the position.
pub fn clause(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let clause = match text.rfind(" at line ") {
        Some(end) if error.line() > 0 => &text[..end],
        _ => &text,
    };
    shorten_sentence(clause)
}

/// Takes bytes out of the account, where there is one.
pub fn spend<E: de::Error>(bytes: usize) -> Result<(), E> {
    let Some(mut account) = ACCOUNT.get() else {
        return Ok(());
    };
    if is_cancelled() {
        account.excess = Some(LimitExceeded::Cancelled);
        ACCOUNT.set(Some(account));
        return Err(E::custom("nobody wants it any more"));
    }
    let left = account.left.checked_sub(bytes);
    if left.is_none() {
        account.excess = Some(LimitExceeded::Memory);
    }
    account.left = left.unwrap_or(0);
    ACCOUNT.set(Some(account));
    left.map(drop)
        .ok_or_else(|| E::custom("reading it would take more memory than it may"))
}

/// Counts one more node of a graph.
pub fn count_node<E: de::Error>() -> Result<(), E> {
    let Some(mut account) = ACCOUNT.get() else {
        return Ok(());
    };
    let left = account.nodes_left.checked_sub(1);
    if left.is_none() {
        account.excess = Some(LimitExceeded::Nodes);
    }
    account.nodes_left = left.unwrap_or(0);
    ACCOUNT.set(Some(account));
    left.map(drop).ok_or_else(|| E::custom("too many nodes"))
}

/// Counts operands or results of a node.
pub fn count_names<E: de::Error>(names: usize) -> Result<(), E> {
    let Some(mut account) = ACCOUNT.get() else {
        return Ok(());
    };
    let left = account.names_left.checked_sub(names);
    if left.is_none() {
        account.excess = Some(LimitExceeded::Names);
    }
    account.names_left = left.unwrap_or(0);
    ACCOUNT.set(Some(account));
    left.map(drop).ok_or_else(|| E::custom("too many operands"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_message_repeats_is_short_and_has_both_ends() {
        assert_eq!(shorten("é"), "é");
        assert_eq!(shorten("a\u{202e}b\n"), "a\u{fffd}b\u{fffd}");
        assert_eq!(shorten(&"é".repeat(61)), format!("{}…", "é".repeat(60)));
        assert_eq!(shorten_sentence("a".repeat(1000)).len(), 1000);
        let long = format!("{}{}", "é".repeat(5000), "b".repeat(300));
        let short = format!("{} … {}", "é".repeat(700), "b".repeat(300));
        assert_eq!(shorten_sentence(long), short);
    }

    #[test]
    fn a_member_is_given_once_however_deep() {
        for (text, twice) in [
            (r#"{"a": 1, "a": 1}"#, r#""a" is given twice"#),
            (
                r#"[{"a": [{"b": 1, "\u0062": 2}]}]"#,
                r#""b" is given twice"#,
            ),
        ] {
            let error = serde_json::from_str::<AnyValue>(text).unwrap_err();
            assert_eq!(clause(&error), twice);
        }
        let table = serde_json::from_str::<Table<'_, u64>>(r#"{"a": 1, "b": 2, "a": 3}"#);
        assert_eq!(clause(&table.unwrap_err()), r#""a" is given twice"#);
    }

    #[test]
    fn what_would_take_too_much_is_not_read() {
        let objects = format!("[{}{{}}]", "{},".repeat(100_000));
        let read = || serde_json::from_str::<AnyValue>(&objects).is_ok();

        assert_eq!(with_budget(1 << 30, read), (true, None));
        assert_eq!(
            with_budget(1 << 20, read),
            (false, Some(LimitExceeded::Memory))
        );
    }

    #[test]
    fn graphs_grow_up_to_the_given_limit() {
        assert_eq!(grow(usize::MAX), Ok(()));
        assert_eq!(graphs_within(8, 0, || grow(8).is_ok()), (true, false));
        let inner = || graphs_within(4, 0, || grow(5).is_ok());
        assert_eq!(graphs_within(8, 0, inner), ((false, true), false));
        let after = || {
            let same = (grow(9).is_ok(), grow(1).is_ok());
            begin_graph();
            (same, grow(1).is_ok())
        };
        assert_eq!(graphs_within(8, 0, after), (((false, false), true), true));
    }

    #[test]
    fn work_pauses_as_graphs_grow_and_when_it_looks_whether_it_was_cancelled() {
        thread_local!(static PAUSES: Cell<u32> = const { Cell::new(0) });
        let looks = || assert!(grow(1).is_ok() && !Cancel::NEVER.is_cancelled());
        pausing(|| PAUSES.set(PAUSES.get() + 1), looks);
        looks();
        assert_eq!(PAUSES.get(), 2);
    }

    #[test]
    fn accounts_end_with_what_they_are_for() {
        let (inner, outer) = with_budget(0, || {
            with_budget(64, || spend::<de::value::Error>(64).is_ok())
        });

        assert_eq!(inner, (true, None));
        assert_eq!(outer, None);
        assert!(spend::<de::value::Error>(usize::MAX).is_ok());
    }

    #[test]
    fn texts_stay_where_they_are_unless_they_have_escapes() {
        let plain: Text<'_> = serde_json::from_str(r#""layer.0""#).unwrap();
        let escaped: Text<'_> = serde_json::from_str(r#""caf\u00e9""#).unwrap();

        assert_eq!(plain, Text::There("layer.0"));
        assert_eq!(escaped, Text::Here("café".into()));
    }
}
