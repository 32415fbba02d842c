//! The members of a request, a row each: name, kind with its bounds, what it means, its flag, and what others call it.
//!
//! [`Fields::read`](crate::Fields::read) reads a member as its row says. `openapi.yaml`, the flags of the command line, completion and hints
//! about misplaced names are made from the same rows.

#[rustfmt::skip] // A row a line.
mod request;
mod schema;
#[rustfmt::skip] // A row a line.
mod soak;
#[rustfmt::skip] // A row a line.
mod training;

use batchfit_step::shape::DType;
use batchfit_step::{CommHook, Compare, Mode, Objective, Optimizer, OptimizerImpl, Precision};

use crate::KeptIn;
use crate::exported::UnknownOps;
pub use request::{LARGEST_TARGET, LENGTHS, MODEL, MOST_RANKS, REQUEST};
pub use schema::schema_of;
pub use soak::{GENERATION, SOAK};
pub use training::{MIXED_PRECISION, PARALLEL, TRAINING};

/// The objects of a request of which there are rows for all members.
pub static OBJECTS: [&Object; 6] = [
    &TRAINING,
    &PARALLEL,
    &MIXED_PRECISION,
    &LENGTHS,
    &SOAK,
    &GENERATION,
];

/// An object of a request.
#[derive(Debug)]
pub struct Object {
    /// What problems call it.
    pub what: &'static str,
    /// The name of its schema.
    pub schema: &'static str,
    /// What it means.
    pub doc: &'static str,
    /// What may be in it.
    pub members: &'static [Member],
}

/// A member of an object.
#[derive(Debug, Clone, Copy)]
pub struct Member {
    /// Its name.
    pub name: &'static str,
    /// What it takes.
    pub kind: Kind,
    /// What it means, in `openapi.yaml`.
    pub doc: &'static str,
    /// JSON that shows it.
    pub example: Option<&'static str>,
    /// Its flag.
    pub flag: Option<Flag>,
    /// What others call it, in small letters with underscores, separated by spaces.
    pub synonyms: &'static str,
    /// The only strategy that has it.
    pub strategy: Option<&'static str>,
    /// Whether inference has none.
    pub trains: bool,
}

/// What a member takes.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A whole number within bounds.
    Whole(u64, u64),
    /// A number within bounds.
    Number(f64, f64),
    /// A number above 0.
    Positive,
    /// `true` or `false`.
    Bool,
    /// `true`, `false` or a list of both.
    Bools,
    /// A text.
    Text,
    /// One of these words; errors name their kind so.
    Word(&'static str, fn() -> Vec<&'static str>),
    /// One of these words or a list of them.
    Words(fn() -> Vec<&'static str>),
    /// A list of globs.
    Globs,
    /// Bytes, or a text with a unit.
    Size,
    /// An object.
    Object(&'static Object),
    /// What code of its own reads.
    Other,
}

/// A flag of the command line.
#[derive(Debug, Clone, Copy)]
pub struct Flag {
    /// Its name, without dashes.
    pub name: &'static str,
    /// What help calls its value; nothing where the flag alone means `true`.
    pub value: Option<&'static str>,
    /// Its line in `--help`.
    pub help: &'static str,
    /// What the line is below.
    pub heading: Heading,
    /// Whether `--help` leaves it out.
    pub is_hidden: bool,
    /// Another name.
    pub alias: Option<&'static str>,
}

/// Headings of flags, in the order of `--help`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Heading {
    /// Sizes of the model.
    Model,
    /// How it is trained.
    Training,
    /// Whose memory, and how much of it.
    Gpu,
    /// How the answer is found.
    Search,
    /// What `batchfit soak` runs.
    Soak,
}

/// A type of which a request names one by a word.
pub trait Choice: Copy + 'static {
    /// Each word, and what it says.
    fn names() -> Vec<(&'static str, Self)>;
}

/// Implements [`Choice`], by the type's own list of names or by this one.
macro_rules! choices {
    ($($type:ty $({ $($word:literal => $value:expr),+ })?;)+) => {
        $(impl Choice for $type {
            fn names() -> Vec<(&'static str, $type)> {
                choices!(@words $type $({ $($word => $value),+ })?)
            }
        })+
    };
    (@words $type:ty) => { <$type>::ALL.map(|one| (one.name(), one)).to_vec() };
    (@words $type:ty { $($word:literal => $value:expr),+ }) => { vec![$(($word, $value)),+] };
}

choices! {
    Precision;
    Optimizer;
    OptimizerImpl;
    Objective;
    Priority;
    Mode;
    SearchMode;
    Compare;
    UnknownOps;
    CommHook;
    KeptIn;
    DType { "fp32" => DType::Float32, "bf16" => DType::BFloat16, "fp16" => DType::Float16 };
}

fn names<T: Choice>() -> Vec<&'static str> {
    T::names().into_iter().map(|(word, _)| word).collect()
}

impl Object {
    /// The names of its members.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.members.iter().map(|member| member.name)
    }

    /// The flags of its members and of those of the objects in it, each with the names on the way to its member.
    pub fn flags(&'static self) -> Vec<(Vec<&'static str>, &'static Member, &'static Flag)> {
        let mut found = Vec::new();
        for member in self.members {
            if let Some(flag) = &member.flag {
                found.push((vec![member.name], member, flag));
            } else if let Kind::Object(object) = member.kind {
                for (mut place, inner, flag) in object.flags() {
                    place.insert(0, member.name);
                    found.push((place, inner, flag));
                }
            }
        }
        found
    }
}

impl Member {
    const fn new(name: &'static str, kind: Kind, doc: &'static str) -> Member {
        Member {
            name,
            kind,
            doc,
            example: None,
            flag: None,
            synonyms: "",
            strategy: None,
            trains: false,
        }
    }

    const fn whole(name: &'static str, least: u64, most: u64, doc: &'static str) -> Member {
        Member::new(name, Kind::Whole(least, most), doc)
    }

    const fn word<T: Choice>(name: &'static str, what: &'static str, doc: &'static str) -> Member {
        Member::new(name, Kind::Word(what, names::<T>), doc)
    }

    /// What others call it.
    pub(crate) fn synonyms(&self) -> impl Iterator<Item = &'static str> {
        self.synonyms.split_whitespace()
    }

    /// The same under another name.
    const fn named(self, name: &'static str) -> Member {
        Member { name, ..self }
    }

    const fn example(self, json: &'static str) -> Member {
        let example = Some(json);
        Member { example, ..self }
    }

    /// What others call it.
    const fn also(self, synonyms: &'static str) -> Member {
        Member { synonyms, ..self }
    }

    /// The only strategy that has it.
    const fn of(self, strategy: &'static str) -> Member {
        let strategy = Some(strategy);
        Member { strategy, ..self }
    }

    /// Inference has none.
    const fn trains(self) -> Member {
        let trains = true;
        Member { trains, ..self }
    }

    /// The flag with which the command line sets it. One without a value means `true`.
    const fn flag(
        self,
        heading: Heading,
        name: &'static str,
        value: &'static str,
        help: &'static str,
    ) -> Member {
        let flag = Some(Flag {
            name,
            value: if value.is_empty() { None } else { Some(value) },
            help,
            heading,
            is_hidden: false,
            alias: None,
        });
        Member { flag, ..self }
    }

    /// Another name of its flag.
    const fn alias(mut self, alias: &'static str) -> Member {
        if let Some(flag) = &mut self.flag {
            flag.alias = Some(alias);
        }
        self
    }

    /// Leaves its flag out of `--help`, which has to fit a screen.
    const fn hidden(mut self) -> Member {
        if let Some(flag) = &mut self.flag {
            flag.is_hidden = true;
        }
        self
    }
}

batchfit_step::listed! {
    /// How the largest batch is searched for.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, serde::Serialize)]
    pub enum SearchMode {
        /// Simulation brackets the answer, real probes confirm it.
        #[default]
        Auto = "auto",
        /// Binary search over real probes alone.
        Probes = "probes",
        /// PyTorch runs the graph at a few small batches, and what its allocator is asked for predicts the rest.
        Recorded = "recorded",
    }
}

batchfit_step::listed! {
    /// Who is served first.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
    pub enum Priority {
        /// A client waits for the answer.
        Interactive = "interactive",
        /// No client waits.
        Batch = "batch",
    }
}

#[cfg(test)]
mod tests {
    use std::{env, fs};

    use super::{Kind, TRAINING};

    /// `INSTA_UPDATE=always` writes the list, as it does with snapshots.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "as insta reads it")]
    fn the_page_about_requests_lists_the_rows_of_training() {
        const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/use/requests.md");
        let rows = TRAINING.members.iter();
        let rows = rows.filter(|row| !matches!(row.kind, Kind::Object(_)));
        let lines = rows.map(|row| format!("- `{}`: {}\n", row.name, row.doc.replace('\n', " ")));
        let list: String = lines.collect();
        let page = fs::read_to_string(PAGE).unwrap();
        let (before, rest) = page.split_once("## `training`\n\n").unwrap();
        let (listed, after) = rest.split_at(rest.find("- `parallel`").unwrap());

        if env::var("INSTA_UPDATE").is_ok_and(|update| update == "always") {
            fs::write(PAGE, format!("{before}## `training`\n\n{list}{after}")).unwrap();
        } else {
            assert_eq!(listed, list);
        }
    }
}
