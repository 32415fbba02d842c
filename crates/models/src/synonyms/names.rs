//! Names of fields, beside those that are other words for one member: its row has them.

use crate::members::{MODEL, Member, REQUEST, TRAINING};

/// An object of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RequestObject {
    Top,
    Training,
    Model,
}

use RequestObject::{Model, Top, Training};

impl RequestObject {
    pub(super) const ALL: [RequestObject; 3] = [Top, Training, Model];

    /// The object at a JSON pointer.
    pub(super) fn at(pointer: &str) -> Option<RequestObject> {
        match pointer {
            "" => Some(Top),
            "/training" => Some(Training),
            "/model" => Some(Model),
            _ => None,
        }
    }

    /// The rows of what may be in it.
    pub(super) fn members(self) -> &'static [Member] {
        match self {
            Top => REQUEST.members,
            Training => TRAINING.members,
            Model => MODEL.members,
        }
    }

    /// The names of what may be in it.
    pub(super) fn names(self) -> impl Iterator<Item = &'static str> {
        self.members().iter().map(|member| member.name)
    }

    /// The object and the member that others call so.
    pub(super) fn of_synonym(word: &str) -> Option<(RequestObject, &'static str)> {
        RequestObject::ALL.into_iter().find_map(|place| {
            let calls_it_so = |member: &&Member| member.synonyms().any(|known| known == word);
            let member = place.members().iter().find(calls_it_so)?;
            Some((place, member.name))
        })
    }

    /// Where a field belongs that was found elsewhere.
    pub(super) fn wrapping(self, field: &str) -> String {
        match self {
            Top => format!("it belongs at the top of the request: {{{field}, ...}}"),
            Training => format!("it belongs in `training`: {{\"training\": {{{field}}}}}"),
            Model => format!("it belongs in `model`: {{\"model\": {{{field}, ...}}}}"),
        }
    }
}

/// What another library's word says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Synonym {
    /// A switch of `training`: one field where it is on, another where it is off.
    Switch(&'static str, &'static str),
    /// Nothing that a request says.
    Advice(&'static str),
}

/// Words of others that no request has, a line each, and ` | ` what to do; `-` where they change no memory.
pub const NAMES: &str = include_str!("names.txt");

/// Every word once, in small letters, with underscores and blanks between them: then what to do, or the fields of a switch.
pub(super) fn names() -> impl Iterator<Item = (&'static str, Synonym)> {
    NAMES.lines().filter_map(|line| {
        let (words, said) = line.split_once(" | ")?;
        let said = match said {
            "-" => "it changes no memory, so leave it out",
            said => said,
        };
        let switch = said.strip_prefix("training | ");
        let switch = switch.and_then(|fields| fields.split_once(" | "));
        Some((
            words,
            switch.map_or(Synonym::Advice(said), |(on, off)| Synonym::Switch(on, off)),
        ))
    })
}
