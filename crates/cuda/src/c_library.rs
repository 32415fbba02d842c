//! C libraries that are loaded when they are first needed.

/// Declares what is used of a library: the file names to try, best first, and of each function the field, the name in C and the signature
/// that its header gives it. `loaded` has them, or `None` where the library is not there.
macro_rules! c_library {
    (
        $(#[$meta:meta])*
        $vis:vis $type:ident from $files:expr;
        $($(#[$of:meta])* $field:ident = $name:literal fn($($argument:ty),*) -> $result:ty;)+
    ) => {
        $(#[$meta])*
        $vis struct $type {
            $($(#[$of])* $vis $field: unsafe extern "C" fn($($argument),*) -> $result,)+
        }

        impl $type {
            /// Loaded once and never unloaded.
            $vis fn loaded() -> Option<&'static $type> {
                static LOADED: std::sync::OnceLock<Option<$type>> = std::sync::OnceLock::new();
                LOADED.get_or_init($type::load).as_ref()
            }

            fn load() -> Option<$type> {
                $files.iter().find_map(|file| {
                    // SAFETY: loading it runs its initialisers, which have no preconditions.
                    let library = unsafe { libloading::Library::new(*file) }.ok()?;
                    let look_up = || Some($type {
                        $($field: {
                            type Function = unsafe extern "C" fn($($argument),*) -> $result;
                            // SAFETY: the type is the signature that the C header gives the function of that name.
                            *unsafe { library.get::<Function>($name) }.ok()?
                        },)+
                    });
                    let functions = look_up();
                    // The functions are kept for good, so the library must stay loaded.
                    std::mem::forget(library);
                    functions
                })
            }
        }
    };
}
