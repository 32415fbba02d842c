//! Lines of bounded length.

use std::io::{BufRead, Read, Result};

/// What a pipe gave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Line {
    /// A line, without its end.
    Whole(String),
    /// The pipe ended after this much of a line.
    Half(String),
    /// The pipe ended.
    End,
    /// More bytes than allowed came without a line end.
    TooLong,
}

/// Reads one line of at most `longest` bytes. Bytes that are no UTF-8 are replaced.
pub fn read(input: &mut impl BufRead, longest: usize) -> Result<Line> {
    let mut bytes = Vec::new();
    input
        .by_ref()
        .take(longest as u64 + 1)
        .read_until(b'\n', &mut bytes)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(match bytes.split_last() {
        None => Line::End,
        Some((b'\n', line)) => Line::Whole(text(line)),
        Some(_) if bytes.len() > longest => Line::TooLong,
        Some(_) => Line::Half(text(&bytes)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_read_line_by_line_up_to_the_bound() {
        let mut pipe = &b"four\nfive!\nend"[..];

        assert_eq!(read(&mut pipe, 4).unwrap(), Line::Whole("four".into()));
        assert_eq!(read(&mut pipe, 4).unwrap(), Line::TooLong);
        assert_eq!(read(&mut &b"end"[..], 4).unwrap(), Line::Half("end".into()));
        assert_eq!(read(&mut &b""[..], 4).unwrap(), Line::End);
    }
}
