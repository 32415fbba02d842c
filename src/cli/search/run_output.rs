//! What a command says, line by line, in bounded memory.

use memchr::memmem;
use regex_lite::Regex;

use super::verdict::says;
use crate::limits::shorten;

/// How much of a line is looked at at a time; of longer ones the end of a part is looked at again with the next.
const LONGEST: usize = 64 << 10;

/// How much of a part is looked at again: more than any message of a framework that names what it is.
const OVERLAP: usize = 1 << 10;

/// What a program says that knows what its allocator reserved.
const PEAK: &[u8] = b"batchfit: peak_reserved_bytes=";

/// The same of a program that knows how often its allocator had to free its cache and ask again.
const RETRIES: &[u8] = b"batchfit: num_alloc_retries=";

/// More bytes than any machine has.
const MOST_BYTES: u64 = 1 << 60;

/// What was heard of a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(in crate::cli) struct RunOutput {
    /// Whether a line said that memory ran out.
    pub(in crate::cli) out_of_memory: bool,
    /// The most bytes that a line said were reserved; several ranks may speak.
    pub(super) peak_reserved_bytes: Option<u64>,
    /// Whether a line said that the allocator had to retry.
    pub(super) has_retries: bool,
    /// The last line with anything in it, or the beginning of it.
    pub(in crate::cli) last_line: String,
}

/// The lines of one stream.
#[derive(Debug)]
pub(super) struct Lines<'a> {
    pattern: &'a Regex,
    line: Vec<u8>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(pattern: &'a Regex) -> Lines<'a> {
        Lines {
            pattern,
            line: Vec::new(),
        }
    }

    /// Takes in what came; `output_of` is told of lines that are whole.
    pub(super) fn take(&mut self, mut bytes: &[u8], heard: &mut RunOutput) {
        while !bytes.is_empty() {
            let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
            let room = LONGEST - self.line.len();
            let part = end.unwrap_or(bytes.len()).min(room);
            self.line.extend_from_slice(&bytes[..part]);
            if end == Some(part) {
                self.end(heard);
                bytes = &bytes[part + 1..];
            } else {
                bytes = &bytes[part..];
                if self.line.len() == LONGEST {
                    self.look(heard);
                    self.line.drain(..LONGEST - OVERLAP);
                }
            }
        }
    }

    /// What came is a line, though nothing ends it.
    pub(super) fn end(&mut self, heard: &mut RunOutput) {
        self.look(heard);
        self.line.clear();
    }

    fn look(&self, heard: &mut RunOutput) {
        if self.line.trim_ascii().is_empty() {
            return;
        }
        heard.out_of_memory = heard.out_of_memory || says(self.pattern, &self.line);
        let said = number(&self.line, PEAK);
        let said = said.filter(|bytes| (1..=MOST_BYTES).contains(bytes));
        heard.has_retries |= number(&self.line, RETRIES).is_some_and(|retries| retries > 0);
        heard.peak_reserved_bytes = heard.peak_reserved_bytes.max(said);
        let start = &self.line[..self.line.len().min(OVERLAP)];
        heard.last_line = shorten(String::from_utf8_lossy(start).trim());
    }
}

/// The number that a line says after these words, if it is one.
fn number(line: &[u8], words: &[u8]) -> Option<u64> {
    let at = memmem::find(line, words)?;
    let rest = &line[at + words.len()..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    std::str::from_utf8(&rest[..digits]).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output_of(parts: &[&[u8]]) -> RunOutput {
        let pattern = Regex::new("out of memory").unwrap();
        let mut lines = Lines::new(&pattern);
        let mut heard = RunOutput::default();
        for part in parts {
            lines.take(part, &mut heard);
            assert!(lines.line.len() < LONGEST);
        }
        lines.end(&mut heard);
        heard
    }

    #[test]
    fn lines_are_put_together_and_the_last_needs_no_end() {
        let found = output_of(&[b"loss 1\nCUDA out of", b" mem", b"ory"]);
        assert!(found.out_of_memory);
        assert_eq!(found.last_line, "CUDA out of memory");
        // Not across lines.
        assert!(!output_of(&[b"out of\nmemory"]).out_of_memory);
        assert_eq!(output_of(&[b"50%\r100%\r\n\n"]).last_line, "100%");
    }

    #[test]
    fn a_line_of_many_parts_is_looked_at_in_parts() {
        let noise = vec![b'x'; 5 * LONGEST + 17];
        for cut in [0, 1, 7, LONGEST - 5, LONGEST, LONGEST + 3] {
            let found = output_of(&[&noise[..cut], b"out of memory", &noise]);
            assert!(found.out_of_memory, "{cut}");
        }
        assert!(!output_of(&[&noise]).out_of_memory);
    }

    #[test]
    fn the_largest_peak_counts_and_nonsense_does_not() {
        let found = output_of(&[
            b"[rank0]: batchfit: peak_reserved_bytes=1048576\n",
            b"batchfit: peak_reserved_bytes=2097152 (rank 1)\nbatchfit: peak_reserved_bytes=5\n",
            b"batchfit: peak_reserved_bytes=\nbatchfit: peak_reserved_bytes=-1\n",
            b"batchfit: peak_reserved_bytes=99999999999999999999999999999999\nbatchfit: peak_reserved_bytes=0\n",
        ]);
        assert_eq!(found.peak_reserved_bytes, Some(2_097_152));
        assert_eq!(
            output_of(&[b"peak_reserved_bytes=5"]).peak_reserved_bytes,
            None
        );
        assert!(!found.has_retries);
        assert!(!output_of(&[b"batchfit: num_alloc_retries=0"]).has_retries);
        assert!(
            output_of(&[b"batchfit: num_alloc_retries=2\nbatchfit: num_alloc_retries=0"])
                .has_retries
        );
    }
}
