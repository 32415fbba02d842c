//! The opcodes of pickle protocols 2 to 5, by the names of Python's `pickletools`.

macro_rules! opcodes {
    ($($name:ident = $byte:literal;)*) => {
        /// One instruction of a pickle.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        #[expect(non_camel_case_types, clippy::upper_case_acronyms, reason = "Python's names")]
        pub(super) enum Opcode { $($name),* }

        impl Opcode {
            pub(super) fn from_byte(byte: u8) -> Option<Opcode> {
                match byte {
                    $($byte => Some(Opcode::$name),)*
                    _ => None,
                }
            }

            pub(super) fn name(self) -> &'static str {
                match self { $(Opcode::$name => stringify!($name)),* }
            }
        }
    };
}

opcodes! {
    PROTO = 0x80;
    FRAME = 0x95;
    STOP = b'.';
    MARK = b'(';
    POP = b'0';
    POP_MARK = b'1';
    DUP = b'2';
    NONE = b'N';
    NEWTRUE = 0x88;
    NEWFALSE = 0x89;
    BININT = b'J';
    BININT1 = b'K';
    BININT2 = b'M';
    LONG1 = 0x8a;
    LONG4 = 0x8b;
    BINFLOAT = b'G';
    SHORT_BINSTRING = b'U';
    BINSTRING = b'T';
    SHORT_BINBYTES = b'C';
    BINBYTES = b'B';
    BINBYTES8 = 0x8e;
    BYTEARRAY8 = 0x96;
    SHORT_BINUNICODE = 0x8c;
    BINUNICODE = b'X';
    BINUNICODE8 = 0x8d;
    EMPTY_LIST = b']';
    LIST = b'l';
    APPEND = b'a';
    APPENDS = b'e';
    EMPTY_TUPLE = b')';
    TUPLE = b't';
    TUPLE1 = 0x85;
    TUPLE2 = 0x86;
    TUPLE3 = 0x87;
    EMPTY_DICT = b'}';
    DICT = b'd';
    SETITEM = b's';
    SETITEMS = b'u';
    EMPTY_SET = 0x8f;
    ADDITEMS = 0x90;
    FROZENSET = 0x91;
    BINGET = b'h';
    LONG_BINGET = b'j';
    BINPUT = b'q';
    LONG_BINPUT = b'r';
    MEMOIZE = 0x94;
    // Only to be refused by name: they import, call or ask the caller for objects.
    GLOBAL = b'c';
    STACK_GLOBAL = 0x93;
    REDUCE = b'R';
    BUILD = b'b';
    INST = b'i';
    OBJ = b'o';
    NEWOBJ = 0x81;
    NEWOBJ_EX = 0x92;
    EXT1 = 0x82;
    EXT2 = 0x83;
    EXT4 = 0x84;
    PERSID = b'P';
    BINPERSID = b'Q';
    NEXT_BUFFER = 0x97;
    READONLY_BUFFER = 0x98;
    // Only to be refused by name: text forms of protocol 0, which Python no longer writes by default.
    INT = b'I';
    LONG = b'L';
    FLOAT = b'F';
    STRING = b'S';
    UNICODE = b'V';
    GET = b'g';
    PUT = b'p';
}
