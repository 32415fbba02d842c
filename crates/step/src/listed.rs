//! Enums that list their values.

/// Declares an enum with a list of its values, `ALL`, in their order. Where each is a word (`Sgd = "sgd"`), `name` is a value's word and
/// `named` the value of a word.
#[macro_export]
macro_rules! listed {
    ($(#[$meta:meta])* $vis:vis enum $type:ident { $($(#[$of:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$meta])*
        $vis enum $type {
            $($(#[$of])* $variant),+
        }

        impl $type {
            /// All of them.
            pub const ALL: [$type; [$(stringify!($variant)),+].len()] = [$($type::$variant),+];
        }
    };
    ($(#[$meta:meta])* $vis:vis enum $type:ident { $($(#[$of:meta])* $variant:ident = $name:literal),+ $(,)? }) => {
        $crate::listed! {
            $(#[$meta])*
            $vis enum $type {
                $($(#[$of])* $variant),+
            }
        }

        impl $type {
            /// Its word in documents, on the command line and in tables.
            pub const fn name(self) -> &'static str {
                match self {
                    $($type::$variant => $name),+
                }
            }

            /// The one of this word.
            pub fn named(word: &str) -> Option<$type> {
                $type::ALL.into_iter().find(|one| one.name() == word)
            }
        }
    };
}
