//! From WHAT and flags to requests.
//!
//! Everything becomes a [`RequestDocument`], the one that the service takes, and is read by the same reader; what is
//! wrong with a member that a flag set is told by the name of the flag.

mod detect;
mod document;
pub(super) mod files;
mod flags;
mod source;

use std::path::{Path, PathBuf};

use serde_json::Value;

use super::arguments;
use super::error::CliError;
use crate::cli::terminal::output;
use crate::jobs::EngineError;
use crate::model::{ModelFiles, Request, RequestDocument, RequestError};
use document::Kind;
pub(super) use flags::{FlagValue, count, course, is_on, members, size};

/// Flags whose absence an error can be about.
const MISSED: [(&str, &str); 4] = [
    ("/model/seq_len", "--seq-len"),
    ("/model/target_len", "--target-len"),
    ("/model/image_size", "--image-size"),
    ("/device", "--on"),
];

/// What a command line asks.
#[derive(Debug)]
pub(super) struct ParsedArgs {
    /// The question; or one for each card, where none is named.
    pub(super) questions: Vec<Request>,
    /// Whom to name where an answer shows that something is wrong.
    pub(super) origin: Provenance,
    /// Whether no flag says how many tokens samples have.
    pub(super) assumes_length: bool,
}

/// Where the members of a request are from.
#[derive(Debug)]
pub(super) struct Provenance {
    given: Vec<FlagValue>,
    /// The file that the model is from.
    file: Option<String>,
    /// The files of `--recorded`.
    recorded: Vec<String>,
    /// Whether flags are all there is beside the model, and no request has any member.
    is_made_of_flags: bool,
}

impl ParsedArgs {
    /// The same with or without a recorder for what is not understood.
    pub(super) fn with_recorder(mut self, has_recorder: bool) -> ParsedArgs {
        let questions = self.questions.into_iter();
        self.questions = questions
            .map(|one| one.with_recorder(has_recorder))
            .collect();
        self
    }

    /// The same about a model that people call so.
    pub(super) fn with_model_name(mut self, name: &str) -> ParsedArgs {
        for one in &mut self.questions {
            *one = one.clone().with_model_name(name);
        }
        self
    }

    /// Whether anything names a device: a flag, or the request.
    pub(super) fn names_a_device(&self) -> bool {
        let device = |one: &Request| one.document.members().get("device").cloned();
        let mut questions = self.questions.iter();
        questions.any(|one| device(one).is_some_and(|device| !device.is_null()))
    }

    /// The only question.
    pub(super) fn only(mut self) -> (Request, Provenance) {
        (self.questions.swap_remove(0), self.origin)
    }

    /// The only question, for commands that answer for one length.
    pub(super) fn of_one_length(self) -> Result<(Request, Provenance), CliError> {
        let (request, origin) = self.only();
        if let Some(lengths) = request
            .lengths
            .as_deref()
            .filter(|them| them.each.len() > 1)
        {
            let several = lengths.each.len();
            let problem = format!("one length is answered at a time, not {several}");
            return Err(origin.name(RequestError::at(lengths.pointer(), problem)));
        }
        // What one length is, its model is.
        Ok((request.alone(), origin))
    }
}

impl Provenance {
    /// Says which flag or file an error is about, where one of them put the value there.
    pub(super) fn blame(&self, trouble: CliError) -> CliError {
        match trouble {
            CliError::Invalid(invalid) | CliError::Engine(EngineError::Invalid(invalid)) => {
                self.name(invalid)
            }
            other => other,
        }
    }

    fn name(&self, mut invalid: RequestError) -> CliError {
        let also = std::mem::take(&mut invalid.also).into_vec();
        let all = [vec![invalid], also].concat().into_iter();
        CliError::all(all.map(|one| self.name_one(one)).collect())
    }

    fn name_one(&self, invalid: RequestError) -> CliError {
        let rest = |place: &str| {
            let rest = invalid.pointer.strip_prefix(place)?;
            (rest.is_empty() || rest.starts_with('/')).then(|| rest.to_owned())
        };
        let mut given = self.given.iter();
        if let Some(given) = given.find(|given| rest(&given.pointer()).is_some()) {
            // The flag is all there is to find; the number of an item would only confuse.
            return CliError::named(&given.flag, invalid);
        }
        if let Some(given) = self.near(&invalid.pointer) {
            return CliError::named(&given.flag, invalid);
        }
        let missed = MISSED.iter().find(|(place, _)| *place == invalid.pointer);
        if let (Some((_, flag)), true) = (missed, self.is_made_of_flags) {
            return CliError::named(flag, invalid);
        }
        let recorded = rest("/model/recorded").and_then(|at| at.get(1..)?.parse::<usize>().ok());
        if let Some(name) = recorded.and_then(|index| self.recorded.get(index)) {
            return CliError::named(name, invalid);
        }
        let at = rest("/model/hf")
            .or_else(|| rest("/model/exported"))
            .or_else(|| rest("/model/recorded"))
            .or_else(|| rest("/model"));
        match (&self.file, at) {
            (Some(name), Some(at)) => CliError::Named {
                name: name.clone(),
                at,
                invalid,
            },
            (None, _) | (_, None) => CliError::Invalid(invalid),
        }
    }
}

impl Provenance {
    /// The flag nearest to a member of a soak or a generation that was not given: the one that asked for what the member is of.
    fn near(&self, pointer: &str) -> Option<&FlagValue> {
        let part = ["/soak/", "/generation/"]
            .into_iter()
            .find(|part| pointer.starts_with(part))?;
        let common = |given: &&FlagValue| {
            let place = given.pointer();
            let both = place.bytes().zip(pointer.bytes());
            both.take_while(|(a, b)| a == b).count()
        };
        self.given
            .iter()
            .filter(|given| given.pointer().starts_with(part))
            .max_by_key(common)
    }
}

/// Reads what is asked.
pub(super) fn read(question: &arguments::RequestFlags) -> Result<ParsedArgs, CliError> {
    read_with(question, None, (None, Vec::new()))
}

/// Reads what is asked, with what else flags set; in the place of WHAT a request that was answered before, where there is one.
pub(super) fn read_and(
    question: &arguments::RequestFlags,
    before: Option<RequestDocument>,
    more: Vec<FlagValue>,
) -> Result<ParsedArgs, CliError> {
    read_with(question, before, (None, more))
}

/// Reads what is asked about a program that is going to be recorded: there is no model.
pub(super) fn read_unrecorded(
    question: &arguments::RequestFlags,
    more: Vec<FlagValue>,
) -> Result<ParsedArgs, CliError> {
    let none = ModelFiles::Recordings(Vec::new(), Vec::new());
    read_with(question, None, (Some(none), more))
}

fn read_with(
    question: &arguments::RequestFlags,
    before: Option<RequestDocument>,
    (instead, more): (Option<ModelFiles>, Vec<FlagValue>),
) -> Result<ParsedArgs, CliError> {
    let mut question = question.clone();
    let own = &mut question.own;
    // Others call WHAT so.
    if own.what.is_none()
        && own
            .model
            .as_deref()
            .is_some_and(|it| !it.exists() && it != Path::new("-"))
    {
        own.what = own.model.take();
    }
    let question = &question;
    let mut wrong = Vec::new();
    let mut given = flags::flag_values(question, &mut wrong);
    given.extend(more);
    let found = match before {
        Some(document) => again(question, document).map(|it| (it, Kind::Request, None)),
        None => input(question),
    };
    let (mut document, kind, file) = match found {
        Ok(found) => found,
        Err(of_model) => {
            wrong.insert(0, of_model);
            return Err(CliError::all(wrong));
        }
    };
    if kind != Kind::Request {
        autocast(&mut given);
    }
    let assumed = document::assumed_length(&document, kind, &mut given);
    let assumes_length = assumed.is_some();
    if let Some(assumed) = assumed {
        let tokens = &assumed.value;
        output::note(&format!(
            "samples are taken to have {tokens} tokens; `--seq-len` says otherwise"
        ));
        given.push(assumed);
    }
    let graph = question.own.model.as_deref().map(source::graph);
    let recordings = recordings(question)?;
    let files = match graph.transpose()? {
        Some(graph) => Some(ModelFiles::Graph(graph)),
        None if recordings.is_empty() => instead,
        None => Some(ModelFiles::Recordings(
            recordings,
            question.own.batches.clone(),
        )),
    };
    if kind == Kind::Request {
        document = document.with_files(files);
    }
    let origin = Provenance {
        given,
        file,
        recorded: question
            .own
            .recorded
            .iter()
            .map(|path| path.display().to_string())
            .collect(),
        is_made_of_flags: kind != Kind::Request,
    };
    document::set(&mut document, kind, &origin.given)?;
    let read = Request::parse(document).map_err(|invalid| origin.name(invalid));
    let questions: Vec<Request> = read.map_err(|next| wrong.push(next)).into_iter().collect();
    if !wrong.is_empty() {
        return Err(CliError::all(wrong));
    }
    Ok(ParsedArgs {
        questions,
        origin,
        assumes_length,
    })
}

/// Has `--mixed-precision bf16` of accelerate and diffusers be `--amp bf16`, where no FSDP2 is asked for, whose policy it is here.
fn autocast(given: &mut [FlagValue]) {
    let is_sharded = given
        .iter()
        .any(|one| one.value.to_string().contains("fsdp2"));
    let policy = given
        .iter_mut()
        .find(|one| one.flag == "--mixed-precision" && !is_sharded);
    if let Some(policy) = policy
        && let Some(Value::String(kind)) = policy.value.get("param_dtype").cloned()
        && policy.value.get("reduce_dtype").is_none()
    {
        output::note(&format!(
            "--mixed-precision {kind} is taken as `--amp {kind}`"
        ));
        policy.place = ["training", "precision"].map(str::to_owned).to_vec();
        policy.value = Value::from(format!("amp_{kind}"));
    }
}

/// A request that was answered before. What it takes from files is not stored with it.
fn again(
    question: &arguments::RequestFlags,
    document: RequestDocument,
) -> Result<RequestDocument, CliError> {
    let names_files = document.model_aside().is_some()
        || !document.references().map_err(CliError::Invalid)?.is_empty();
    if names_files && question.own.model.is_none() && question.own.recorded.is_empty() {
        let problem = "the model of this answer is in a file, which is not kept with it; give that again, by --model or \
                       --recorded, or ask as before";
        return Err(CliError::flag("--again", problem));
    }
    Ok(document)
}

/// What is asked about, and the file or the flag that the model is from.
fn input(
    question: &arguments::RequestFlags,
) -> Result<(RequestDocument, Kind, Option<String>), CliError> {
    let by_flag = ["--model", "--recorded"];
    let model = question.own.model.as_deref();
    let recorded = question.own.recorded.first().map(PathBuf::as_path);
    let (flag, model) = match (model, recorded) {
        (None, Some(first)) => (by_flag[1], Some(first)),
        (model, _) => (by_flag[0], model),
    };
    let Some(what) = question.own.what.as_deref() else {
        return Ok((document::empty(), Kind::Request, Some(flag.to_owned())));
    };
    if model == Some(what) && what == Path::new("-") {
        let problem = format!("WHAT and {flag} cannot both be read from stdin");
        return Err(CliError::flag(flag, problem));
    }
    let (document, kind) = source::find(what)?;
    let file = match (model, kind) {
        (Some(_), Kind::Request) => Some(flag.to_owned()),
        (Some(_), Kind::Name | Kind::File) => {
            let problem = format!(
                "{} is a model already; with {flag}, WHAT is a request or left out",
                what.display()
            );
            return Err(CliError::flag(flag, problem));
        }
        (None, Kind::Name | Kind::Request) => None,
        (None, Kind::File) => Some(what.display().to_string()),
    };
    Ok((document, kind, file))
}

/// What is wrong with a model that is no file here.
pub(super) fn no_model(what: &Path) -> Option<String> {
    let is_name = what != Path::new("-") && !what.exists();
    let problem = is_name.then(|| source::find(what).err()).flatten()?;
    Some(problem.into_problem().detail)
}

/// The contents of the files of `--recorded`.
fn recordings(question: &arguments::RequestFlags) -> Result<Vec<Vec<u8>>, CliError> {
    let (paths, batches) = (&question.own.recorded, &question.own.batches);
    if !batches.is_empty() && batches.len() != paths.len() {
        let problem = format!(
            "{} batches for {} recordings; give one for each, in the order of the files",
            batches.len(),
            paths.len()
        );
        return Err(CliError::flag("--batches", problem));
    }
    paths.iter().map(|path| files::read_bytes(path)).collect()
}
