//! Questions about settings of other trainers.

use std::ffi::OsString;

use super::{LEFT_OUT, ONE_BATCH, is_on, removed, row};

/// The settings of YAML with what they are: lists with commas between their items, and `{` where there are further settings in them.
fn pairs(settings: &str) -> Vec<(&str, String)> {
    let mut pairs = Vec::<(&str, String)>::new();
    for line in settings.lines() {
        let line = line.split(" #").next().unwrap_or_default().trim_end();
        let (own, last) = (line.trim_start(), pairs.last_mut());
        match (own.strip_prefix("- "), last) {
            (Some(item), Some((_, value))) => value.extend([",", item]),
            (None, Some((_, value))) if own.len() < line.len() => value.push('{'),
            _ => pairs.extend(
                own.split_once(':')
                    .map(|(key, value)| (key, value.to_owned())),
            ),
        }
    }
    for (_, value) in &mut pairs {
        value.retain(|c| !"[]\"'".contains(c));
        value
            .replace(", ", ",")
            .trim_matches([' ', ','])
            .clone_into(value);
    }
    pairs
}

/// Names of trainers' settings that change nothing of the memory of a step: how is logged, saved and scheduled, and which data there is. Those
/// with a star begin so.
const UNASKED: &str = include_str!("unasked.txt");

fn is_unasked(key: &str) -> bool {
    let mut names = UNASKED.split_whitespace();
    names.any(|name| match name.strip_suffix('*') {
        Some(start) => key.starts_with(start),
        None => key == name,
    })
}

/// Settings that switch adapters on or off; without one, ranks and the like do.
const SWITCHES: &str =
    "adapter finetuning_type train_type training_type tuner_type peft_type use_lora use_peft peft";

/// What is typed, where a flag switches adapters off: without it, and without what ranks and the like say.
pub(super) fn without_adapter(
    flag: &str,
    value: &str,
    typed: &[OsString],
) -> Option<(Vec<OsString>, String)> {
    let name = flag.trim_start_matches('-').replace('-', "_");
    let is_switch = SWITCHES.split(' ').any(|switch| switch == name);
    let is_off = is_on(value) == Some(false) || ["full", "none", "0", "n", "f"].contains(&value);
    if !is_switch || !is_off {
        return None;
    }
    let mut words = typed.to_vec();
    removed(&mut words, flag);
    let is_of_adapter = |word: &str| {
        let name = word.split('=').next().unwrap_or(word);
        let is_so = |said: &str| said.starts_with("--with lora");
        word.starts_with('-') && row(name, " = ").is_some_and(is_so)
    };
    let mut left = vec![flag.to_owned()];
    while let Some(at) = words
        .iter()
        .position(|it| it.to_str().is_some_and(is_of_adapter))
    {
        let word = words[at].to_string_lossy().into_owned();
        removed(&mut words, &word);
        left.push(word);
    }
    while let Some(at) = (words.windows(2))
        .position(|it| it[0] == "--with" && it[1].to_string_lossy().starts_with("lora"))
    {
        words.drain(at..at + 2);
    }
    words.retain(|it| !it.to_string_lossy().starts_with("--with=lora"));
    let left = left.join(", ");
    Some((words, format!("{left} left out: no adapter is trained")))
}

/// Settings of TRL's scripts that are no other trainer's, beside `model_name_or_path`.
const OF_TRL: &str = "use_peft lora_r max_length max_prompt_length max_completion_length packing beta loss_type dataset_text_field \
                      completion_only_loss assistant_only_loss";

/// The flags of a question, each once, and the settings that it has no words for.
#[derive(Default)]
struct Question<'k> {
    flags: Vec<String>,
    left: Vec<&'k str>,
    unknown: Vec<&'k str>,
}

impl<'k> Question<'k> {
    /// Asks what a setting says, unless another has said it, or something else of the same.
    fn ask(&mut self, key: &'k str, flags: &str) {
        for flag in flags.split(" --").map(|it| it.trim_start_matches('-')) {
            let flag = format!("--{flag}");
            let same = self.flags.iter().find(|it| subject(it) == subject(&flag));
            match same {
                None => self.flags.push(flag),
                Some(same) if *same == flag => {}
                Some(_) => self.left.push(key),
            }
        }
    }

    /// The settings that are not in it.
    fn left_out(&self) -> String {
        let left = self.left.iter().map(|key| (*key).to_owned());
        let mut left: Vec<_> = left.collect();
        if !self.unknown.is_empty() {
            let (count, keys) = (self.unknown.len(), self.unknown.join(", "));
            let more = if left.is_empty() { "" } else { " more" };
            left.push(format!(
                "{count}{more} that batchfit does not know ({keys})"
            ));
        }
        match left.as_slice() {
            [] => String::new(),
            left => format!(", but for {}", left.join(", ")),
        }
    }
}

/// What a flag is about. The type of numbers is one, however it is asked.
fn subject(flag: &str) -> &str {
    let name = flag.split([' ', '=']).next().unwrap_or_default();
    match name {
        "--amp" => "--precision",
        "--with" => flag.split('=').next().unwrap_or(flag),
        name => name,
    }
}

/// The question about what a trainer's settings in YAML say, as far as they have words here, and what is not in it. The first model is meant.
pub(in crate::cli) fn of_settings(settings: &str) -> Option<String> {
    let (mut model, mut batch, mut asked) = (None, None, Vec::new());
    let (mut has_adapter, mut is_quantized, mut question) = (false, false, Question::default());
    // Whether all weights are trained, and by a trainer that trains them in float32.
    let (mut is_full, mut is_upcast, mut is_switched) = (false, false, false);
    let pairs = pairs(settings);
    for (key, value) in &pairs {
        let value = value.as_str();
        let is_switch = SWITCHES.split(' ').any(|switch| switch == *key);
        let is_lora = ["lora", "qlora", "dora"].contains(&&*value.to_lowercase());
        is_full |= is_switch && !is_lora && is_on(value) != Some(true);
        is_switched |= is_switch;
        is_upcast |= *key == "finetuning_type" && !is_lora;
        if is_on(value) == Some(false) || ["", "null", "~", "{}"].contains(&value) {
            continue;
        }
        let is_adapter = ["lora", "qlora"].contains(&&*value.to_lowercase());
        has_adapter |= is_adapter || is_switch && is_on(value) == Some(true);
        is_quantized |= value == "qlora";
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,".contains(c);
        let named = format!("{key}={value}");
        let (of_value, advice) = (row(&named, " = "), row(&named, " | "));
        match (of_value.or_else(|| row(key, " = ")), row(key, " | ")) {
            _ if advice.is_some() => question.left.push(*key),
            (Some(LEFT_OUT), _) => {}
            _ if is_adapter => {}
            (Some(said), _) if said.contains("=%|") => {}
            (Some(said), _) if said.contains('%') && value.chars().all(is_plain) => match said {
                "%" if model.is_none() => model = Some(value),
                "%" => question.left.push(*key),
                _ => asked.push((*key, said.replace('%', value))),
            },
            (Some(said), _) if of_value.is_some() || ["true", "auto", "True"].contains(&value) => {
                asked.push((*key, said.to_owned()));
            }
            (None, Some(ONE_BATCH)) if batch.is_none() => batch = Some(value),
            (_, Some(said)) => {
                is_quantized |= said.starts_with("4-bit");
                question.left.push(*key);
            }
            (Some(_), None) => question.left.push(*key),
            // What has other characters is none.
            (None, None) if is_unasked(key) || !key.chars().all(is_plain) => {}
            (None, None) => question.unknown.push(*key),
        }
    }
    if is_full && !has_adapter {
        asked.retain(|(_, flag)| !flag.starts_with("--with lora"));
    }
    let named = |names: &str| {
        let mut names = names.split(' ');
        names.any(|name| pairs.iter().any(|(key, _)| *key == name))
    };
    let is_by_name = named("model_name_or_path");
    let is_of_factory = is_by_name && named("finetuning_type stage");
    let is_of_trl = is_by_name && !is_of_factory && named(OF_TRL);
    has_adapter |= is_of_factory && !named("finetuning_type");
    let is_half = has_adapter && (is_quantized || !is_of_trl);
    // What is said of all numbers counts, and not what is said of autocast.
    asked.sort_by_key(|(_, flag)| !flag.starts_with("--precision "));
    for (key, flag) in &asked {
        // Trainers but TRL's load the weights under adapters in the type that they train in.
        let flag = match flag.strip_prefix("--amp ") {
            Some(kind) if is_half => format!("--precision {kind}"),
            _ => flag.clone(),
        };
        question.ask(key, &flag);
    }
    let has = |start: &str| asked.iter().any(|(_, flag)| flag.starts_with(start));
    if has_adapter && !has("--with lora=") {
        question.flags.push("--lora 16".to_owned());
    }
    // As TRL 1.16 trains unless told otherwise (`_BaseConfig` and `ModelConfig`), and LLaMA-Factory 0.9 (`ModelArguments`).
    if is_of_trl && !is_quantized && !named("bf16 fp16") && !has("--precision ") {
        question.flags.push("--amp bf16".to_owned());
    }
    let checkpoints = is_of_factory || is_of_trl && !named("gradient_checkpointing");
    if checkpoints && !has("--checkpoint ") {
        question.flags.push("--checkpoint per_block".to_owned());
    }
    is_upcast |= is_of_trl && !is_quantized && !named("dtype torch_dtype");
    let has_amp = question.flags.iter().any(|it| it.starts_with("--amp "));
    if is_upcast && has_amp && !has("--precision ") {
        question.flags.push("--with param_dtype=fp32".to_owned());
    }
    if is_quantized && !has("--precision ") && !(is_half && has("--amp ")) {
        question.flags.push("--precision bf16".to_owned());
    }
    let left = question.left_out();
    let flags = question.flags.iter();
    let flags = flags.fold(String::new(), |all, flag| all + " " + flag);
    let flags = match batch {
        Some(batch) => format!("probe {} --on CARD --batch {batch}{flags}", model?),
        None => format!("fit {} --on CARD{flags}", model?),
    };
    let weights = if is_quantized {
        ", with 16-bit weights"
    } else if is_by_name && !is_switched && has("--with lora=") {
        ", with an adapter, which TRL trains only where `use_peft` is true"
    } else {
        ""
    };
    Some(format!(
        "`batchfit {flags}` asks about what it says{weights}{left}"
    ))
}

#[cfg(test)]
mod tests {
    use super::of_settings;

    /// Each part is what it shows, settings, and the question behind `=>`, where there is one.
    #[test]
    fn settings_of_trainers_become_a_question() {
        for part in include_str!("settings.txt").split("== ").skip(1) {
            let (why, rest) = part.split_once('\n').unwrap();
            let (settings, question) = rest.split_once("=>").unwrap();
            let question = Some(question.trim()).filter(|it| !it.is_empty());
            assert_eq!(of_settings(settings).as_deref(), question, "{why}");
        }
    }
}
