//! The command, and where its batch belongs.

use std::ffi::{OsStr, OsString};

use super::wrong;
use crate::cli::error::CliError;
use crate::limits::shorten_sentence;

/// What stands for the batch.
const BATCH: &str = "{batch}";

/// A command in which something stands for the batch.
#[derive(Debug)]
pub(super) struct Template(Vec<OsString>);

impl Template {
    pub(super) fn read(command: &[OsString]) -> Result<Template, CliError> {
        let has_batch = |argument: &&OsString| {
            let bytes = argument.as_encoded_bytes();
            bytes.windows(BATCH.len()).any(|at| at == BATCH.as_bytes())
        };
        if !command.iter().any(|argument| has_batch(&argument)) {
            return Err(wrong(format!(
                "no argument has {BATCH} in it, so every run would be the same; write it where the batch belongs, such as \
                 `batchfit search -- python train.py --batch-size {BATCH}`"
            )));
        }
        Ok(Template(command.to_vec()))
    }

    /// The command at a batch; the program comes first.
    pub(super) fn at(&self, batch: u64) -> Vec<OsString> {
        let batch = batch.to_string();
        self.0
            .iter()
            .map(|argument| replaced(argument, batch.as_bytes()))
            .collect()
    }

    /// As it was written, but for the middle of it where it is long.
    pub(super) fn shown(&self) -> String {
        let words: Vec<_> = self.0.iter().map(|word| word.to_string_lossy()).collect();
        shorten_sentence(words.join(" "))
    }
}

fn replaced(argument: &OsStr, batch: &[u8]) -> OsString {
    let mut out = Vec::new();
    let mut rest = argument.as_encoded_bytes();
    while let Some((first, others)) = rest.split_first() {
        if let Some(after) = rest.strip_prefix(BATCH.as_bytes()) {
            out.extend_from_slice(batch);
            rest = after;
        } else {
            out.push(*first);
            rest = others;
        }
    }
    batchfit_platform::os_string(&out)
}

#[cfg(test)]
mod tests {
    use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};

    use super::*;

    #[test]
    fn the_batch_is_put_wherever_it_stands() {
        let words = [
            "./train-{batch}",
            "--batch={batch}",
            "{batch}{batch}",
            "{bat",
            "{BATCH}",
            "",
        ];
        let template = Template::read(&words.map(OsString::from)).unwrap();

        let expected = ["./train-32", "--batch=32", "3232", "{bat", "{BATCH}", ""];
        assert_eq!(template.at(32), expected.map(OsString::from));
    }

    #[test]
    fn bytes_that_are_no_text_stay() {
        let odd = OsString::from_vec(vec![0xff, b'{', b'b', b'a', b't', b'c', b'h', b'}', 0xfe]);
        let template = Template::read(&[OsString::from("x"), odd]).unwrap();

        assert_eq!(template.at(7)[1].as_bytes(), [0xff, b'7', 0xfe]);
    }

    #[test]
    fn a_command_without_a_batch_is_refused() {
        assert!(Template::read(&["./train", "{ batch }"].map(OsString::from)).is_err());
    }
}
