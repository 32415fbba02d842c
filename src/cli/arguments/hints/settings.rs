//! Questions about settings of other trainers.

use super::{LEFT_OUT, ONE_BATCH, row};

/// The question about what a trainer's settings in YAML say, as far as they have words here, and what is not in it.
pub(in crate::cli) fn of_settings(settings: &str) -> Option<String> {
    let (mut model, mut batch, mut flags) = (None, None, String::new());
    let (mut has_adapter, mut is_quantized) = (false, false);
    // Nested settings are indented.
    for (key, value) in settings.lines().filter_map(|line| line.split_once(": ")) {
        let value = value
            .split(" #")
            .next()
            .unwrap_or_default()
            .trim()
            .trim_matches(['"', '\'']);
        has_adapter |= value.ends_with("lora");
        is_quantized |= value == "qlora" || key.starts_with("load_in_") && value == "true";
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
        if value.is_empty() || !value.chars().all(is_plain) {
            continue;
        }
        match (row(key, " = "), row(key, " | ")) {
            (Some("%"), _) => model = Some(value),
            (Some(LEFT_OUT), _) => {}
            (Some(said), _) if said.contains("=%|") => {}
            (Some(said), _) if said.contains('%') => {
                flags.extend([" ", &said.replace('%', value)]);
            }
            (Some(said), _) if ["true", "auto"].contains(&value) => flags.extend([" ", said]),
            (None, Some(ONE_BATCH)) => batch = Some(value),
            _ => {}
        }
    }
    if has_adapter {
        // Trainers load the weights under adapters in the type that they train in.
        flags = flags.replace("--amp ", "--precision ");
        if !flags.contains("lora=") {
            flags += " --lora 16";
        }
    }
    let flags = match batch {
        Some(batch) => format!("probe {} --on CARD --batch {batch}{flags}", model?),
        None => format!("fit {} --on CARD{flags}", model?),
    };
    let left_out = if is_quantized {
        ", with 16-bit weights: 4-bit ones are not modelled"
    } else {
        ""
    };
    Some(format!(
        "`batchfit {flags}` asks about what it says{left_out}"
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

        assert_eq!(
            of_settings(axolotl).as_deref(),
            Some(
                "`batchfit probe NousResearch/Meta-Llama-3-8B --on CARD --batch 2 --with lora=32 --seq-len 4096 --checkpoint per_block \
                 --precision bf16` asks about what it says, with 16-bit weights: 4-bit ones are not modelled"
            )
        );
        assert_eq!(
            of_settings(factory).as_deref(),
            Some(
                "`batchfit fit Qwen/Qwen2.5-7B --on CARD --seq-len 2048 --lora 16` asks about what it says"
            )
        );
        assert_eq!(of_settings("model: 7\n$(rm): x"), None);
    }
}
