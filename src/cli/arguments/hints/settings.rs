//! Questions about settings of other trainers.

use super::{LEFT_OUT, ONE_BATCH, is_on, row};

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

/// The question about what a trainer's settings in YAML say, as far as they have words here, and what is not in it. The first model is meant.
pub(in crate::cli) fn of_settings(settings: &str) -> Option<String> {
    let (mut model, mut batch, mut flags) = (None, None, String::new());
    let (mut has_adapter, mut is_quantized, mut left) = (false, false, Vec::new());
    let pairs = pairs(settings);
    for (key, value) in &pairs {
        let value = value.as_str();
        if is_on(value) == Some(false) || ["", "null", "~", "{}"].contains(&value) {
            continue;
        }
        let is_adapter = ["lora", "qlora"].contains(&&*value.to_lowercase());
        has_adapter |= is_adapter;
        is_quantized |= value == "qlora";
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./,".contains(c);
        let of_value = row(&format!("{key}={value}"), " = ");
        match (of_value.or_else(|| row(key, " = ")), row(key, " | ")) {
            (Some(LEFT_OUT), _) => {}
            _ if is_adapter => {}
            (Some(said), _) if said.contains("=%|") => {}
            (Some(said), _) if said.contains('%') && value.chars().all(is_plain) => match said {
                "%" => model = model.or(Some(value)),
                _ => flags.extend([" ", &said.replace('%', value)]),
            },
            (Some(said), _) if of_value.is_some() || ["true", "auto", "True"].contains(&value) => {
                flags.extend([" ", said]);
            }
            (None, Some(ONE_BATCH)) => batch = Some(value),
            (_, Some(said)) => {
                is_quantized |= said.starts_with("4-bit");
                left.push(*key);
            }
            (Some(_), None) => left.push(*key),
            (None, None) => {}
        }
    }
    if has_adapter {
        // Trainers load the weights under adapters in the type that they train in.
        flags = flags.replace("--amp ", "--precision ");
        if !flags.contains("lora=") {
            flags += " --lora 16";
        }
    }
    if is_quantized && !flags.contains("--precision ") {
        flags += " --precision bf16";
    }
    let flags = match batch {
        Some(batch) => format!("probe {} --on CARD --batch {batch}{flags}", model?),
        None => format!("fit {} --on CARD{flags}", model?),
    };
    let weights = if is_quantized {
        ", with 16-bit weights"
    } else {
        ""
    };
    let left = match left.as_slice() {
        [] => String::new(),
        left => format!(", but for {}", left.join(", ")),
    };
    Some(format!(
        "`batchfit {flags}` asks about what it says{weights}{left}"
    ))
}

#[cfg(test)]
mod tests {
    use super::of_settings;

    #[test]
    fn settings_of_trainers_become_a_question() {
        let axolotl = "base_model: NousResearch/Meta-Llama-3-8B\nload_in_4bit: true\nadapter: qlora\nlora_r: 32 # low\nsequence_len: 4096\n\
                       micro_batch_size: 2\ngradient_checkpointing: true\nbf16: auto\nfp16: false\ndatasets:\n  - path: x\n";
        let factory = "model_name_or_path: \"Qwen/Qwen2.5-7B\"\nfinetuning_type: lora\ncutoff_len: 2048\nflash_attn: fa2\n";

        let targets = "lora_target_modules:\n  - q_proj\n  - v_proj\nsample_packing: true\nfsdp:\n  - full_shard\nplugins:\n  x: y\n";
        let said = |text: &str| of_settings(text).unwrap_or_default();

        assert_eq!(
            said(axolotl),
            "`batchfit probe NousResearch/Meta-Llama-3-8B --on CARD --batch 2 --with lora=32 --seq-len 4096 --checkpoint per_block \
             --precision bf16` asks about what it says, with 16-bit weights, but for load_in_4bit"
        );
        assert_eq!(
            said(factory),
            "`batchfit fit Qwen/Qwen2.5-7B --on CARD --seq-len 2048 --lora 16` asks about what it says"
        );
        assert_eq!(
            said(&format!(
                "model_name: gpt2\n{targets}stage: dpo\ntf32: true\n"
            )),
            "`batchfit fit gpt2 --on CARD --with lora_target_modules=q_proj,v_proj` asks about what it says, but for sample_packing, fsdp, stage"
        );
        assert_eq!(of_settings("model: 7\n$(rm): x"), None);
    }
}
