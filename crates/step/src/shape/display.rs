//! How sizes are written: for people, and into fingerprints.

use std::fmt;

use serde::{Serialize, Serializer};

use super::Extent;
use super::piece::Steps;

impl Serialize for Extent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.piece() {
            None => self.powers().serialize(serializer),
            Some(_) => self.to_string().serialize(serializer),
        }
    }
}

impl fmt::Display for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let steps = self.piece().map(|piece| match piece.steps {
            Steps::Quotient { slope, offset, by } => {
                let slope = if slope == 1 {
                    String::new()
                } else {
                    slope.to_string()
                };
                let offset = if offset == 0 {
                    String::new()
                } else {
                    format!("+{offset}")
                };
                format!("⌊({slope}b{offset})/{by}⌋")
            }
            Steps::Beyond { from } => format!("max(b-{from},0)"),
        });
        let steps = steps.as_deref().unwrap_or_default();
        let piece = self.piece().map_or([0; 3], |piece| {
            let [constant, per_sample] = piece.factor.map(i64::from);
            [i64::from(piece.square), per_sample, constant]
        });
        let powers = self.powers();
        let terms = [
            (piece[0], format!("{steps}²")),
            (powers[2], "b²".to_owned()),
            (piece[1], format!("b{steps}")),
            (piece[2], steps.to_owned()),
            (powers[1], "b".to_owned()),
            (powers[0], String::new()),
        ];
        let mut first = true;
        for (times, of) in terms.iter().filter(|(times, _)| *times != 0) {
            if !first && *times > 0 {
                f.write_str("+")?;
            }
            first = false;
            match (*times, of.as_str()) {
                (times, "") => write!(f, "{times}")?,
                (1, of) => f.write_str(of)?,
                (-1, of) => write!(f, "-{of}")?,
                (times, of) => write!(f, "{times}{of}")?,
            }
        }
        if first { f.write_str("0") } else { Ok(()) }
    }
}

impl fmt::Debug for Extent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}
