//! Patterns of module paths.

use std::borrow::Cow;

/// A pattern of paths: `*` stands for any characters but dots, `**` for any at all, and `?` for one that is no dot.
///
/// All ways to match are followed at once, one bit for each place in the glob, so that the time is linear in the path.
#[derive(Debug, Clone)]
pub struct Glob {
    /// Places with a `**`, with a `*` or a `**`, and with a `?`.
    any: u128,
    star: u128,
    one: u128,
    /// For each byte, the places that have it.
    bytes: [u128; 256],
    end: u128,
}

impl Glob {
    /// `None` for one of more than 127 places; requests have none that long.
    pub fn new(text: &str) -> Option<Glob> {
        let mut glob = Glob {
            any: 0,
            star: 0,
            one: 0,
            bytes: [0; 256],
            end: 1,
        };
        let mut rest = text.as_bytes();
        while let [first, others @ ..] = rest {
            let at = glob.end;
            rest = others;
            match first {
                b'*' => {
                    // Stars next to each other are one, which crosses dots if there are two of them.
                    let stars = rest.iter().take_while(|byte| **byte == b'*').count();
                    rest = &rest[stars..];
                    glob.star |= at;
                    if stars > 0 {
                        glob.any |= at;
                    }
                }
                b'?' => glob.one |= at,
                byte => glob.bytes[usize::from(*byte)] |= at,
            }
            glob.end = at.checked_shl(1).filter(|end| *end != 0)?;
        }
        Some(glob)
    }

    /// Whether the whole path matches.
    pub fn matches(&self, path: &str) -> bool {
        // Stars also stand for nothing.
        let beyond_stars = |at: u128| at | (at & self.star) << 1;
        let mut at = beyond_stars(1);
        for byte in path.bytes() {
            let (stays, passes) = match byte {
                b'.' => (self.any, 0),
                _ => (self.star, self.one),
            };
            let passes = passes | self.bytes[usize::from(byte)];
            at = beyond_stars((at & stays) | (at & passes) << 1);
            if at == 0 {
                return false;
            }
        }
        at & self.end != 0
    }
}

/// Patterns of a model's modules or parameters, whatever wraps it: each matches paths with the names that wrappers add, and without.
#[derive(Debug, Clone, Default)]
pub struct Globs(Vec<(String, [Glob; 2])>);

impl Globs {
    /// What [`Glob::new`] does not read is left out.
    pub fn new<T: AsRef<str>>(texts: &[T]) -> Globs {
        let read = |text: &T| {
            let text = text.as_ref();
            let both = [Glob::new(text)?, Glob::new(&unwrapped(text))?];
            Some((text.to_owned(), both))
        };
        Globs(texts.iter().filter_map(read).collect())
    }

    /// Whether one of them matches the whole path.
    pub fn matches(&self, path: &str) -> bool {
        self.0.iter().any(|(_, globs)| is_match(globs, path))
    }

    /// The first of them that matches none of these paths.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "an iterator is not borrowed anywhere else"
    )]
    pub fn unmatched<'a>(&self, paths: impl Iterator<Item = &'a str> + Clone) -> Option<&str> {
        let is_idle =
            |(_, globs): &&(String, [Glob; 2])| !paths.clone().any(|path| is_match(globs, path));
        self.0.iter().find(is_idle).map(|(text, _)| text.as_str())
    }
}

fn is_match([as_written, bare]: &[Glob; 2], path: &str) -> bool {
    as_written.matches(path) || bare.matches(&unwrapped(path))
}

/// What stands before the names of a model that is wrapped as a whole: `DistributedDataParallel`, PEFT's `PeftModel`.
const AROUND: [&str; 2] = ["module.", "base_model.model."];

/// What stands for a module that is wrapped, at any place: `torch.compile`, `checkpoint_wrapper`, `FullyShardedDataParallel`.
const INSIDE: [&str; 3] = [
    "_orig_mod",
    "_checkpoint_wrapped_module",
    "_fsdp_wrapped_module",
];

/// A path as the model itself has it, without the names that wrappers add.
pub fn unwrapped(path: &str) -> Cow<'_, str> {
    let mut path = Cow::Borrowed(path);
    if path.split('.').any(|name| INSIDE.contains(&name)) {
        let own = path.split('.').filter(|name| !INSIDE.contains(name));
        path = Cow::Owned(own.collect::<Vec<_>>().join("."));
    }
    while let Some(around) = AROUND.iter().find(|around| path.starts_with(*around)) {
        path = Cow::Owned(path[around.len()..].to_owned());
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matches(glob: &str, path: &str) -> bool {
        Glob::new(glob).unwrap().matches(path)
    }

    #[test]
    fn globs_stop_at_dots() {
        assert!(matches("layer*.0", "layer3.0"));
        assert!(matches("transformer.h.*", "transformer.h.11"));
        assert!(!matches("transformer.h.*", "transformer.h.11.mlp"));
        assert!(matches("transformer.**", "transformer.h.11.mlp"));
        assert!(!matches("layer?", "layer10"));
    }

    #[test]
    fn globs_match_with_the_names_of_wrappers_and_without() {
        let wrapped = [
            "model.layers.3",
            "base_model.model.model.layers.3",
            "module.model.layers.3",
            "module.base_model.model.model.layers.3",
            "_orig_mod.module.model.layers.3",
            "model.layers.3._orig_mod",
            "model.layers.3._checkpoint_wrapped_module",
        ];
        for path in wrapped {
            for glob in wrapped.map(|path| path.replace('3', "*")) {
                assert!(Globs::new(&[&glob]).matches(path), "{glob} {path}");
            }
            assert!(!Globs::new(&["layers.*"]).matches(path), "{path}");
        }
        // A module that is called so itself.
        assert!(Globs::new(&["module.*"]).matches("module.conv"));
        let some = Globs::new(&["model.layers.*", "model.blocks.*"]);
        assert_eq!(some.unmatched(wrapped.into_iter()), Some("model.blocks.*"));
        assert_eq!(unwrapped("encoder.module.0"), "encoder.module.0");
    }

    #[test]
    fn a_glob_with_many_stars_is_answered_at_once() {
        let path = "a".repeat(20_000);

        assert!(!matches("*a*a*a*a*b", &path));
        assert!(matches("*a*a*a*a*a", &path));
        assert!(!matches(&format!("{}b", "**a".repeat(40)), &path));
    }

    /// What globs mean, said as shortly as can be; it takes for ever on some.
    fn backtracking(glob: &[u8], path: &[u8]) -> bool {
        match glob {
            [] => path.is_empty(),
            [b'*', b'*', rest @ ..] => {
                (0..=path.len()).any(|skip| backtracking(rest, &path[skip..]))
            }
            [b'*', rest @ ..] => {
                let end = path.iter().position(|b| *b == b'.').unwrap_or(path.len());
                (0..=end).any(|skip| backtracking(rest, &path[skip..]))
            }
            [b'?', rest @ ..] => {
                path.first().is_some_and(|b| *b != b'.') && backtracking(rest, &path[1..])
            }
            [c, rest @ ..] => path.first() == Some(c) && backtracking(rest, &path[1..]),
        }
    }

    proptest::proptest! {
        #[test]
        fn globs_mean_what_backtracking_finds(glob in "[ab.*?]{0,8}", path in "[ab.]{0,10}") {
            let slowly = backtracking(glob.as_bytes(), path.as_bytes());
            proptest::prop_assert_eq!(matches(&glob, &path), slowly);
        }
    }
}
