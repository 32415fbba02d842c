//! The stack machine, as far as it builds plain data.

use super::PickleError;
use super::opcode::Opcode;
use super::value::{Pickle, Value, ValueId};

/// What a pickle may make its reader use. The size of the file is bounded where it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Values that are not shared. One takes 32 bytes and what a container lists.
    pub values: usize,
    /// Containers that are open at once. PyTorch's snapshots nest six deep.
    pub depth: usize,
}

impl Default for Bounds {
    /// Enough for a snapshot of a million events; up to about 1 GiB.
    fn default() -> Bounds {
        Bounds {
            values: 1 << 25,
            depth: 64,
        }
    }
}

/// The highest protocol there is.
const PROTOCOL: u8 = 5;
/// Small integers exist once each.
const SHARED_INTS: u32 = 256;

const NONE: ValueId = ValueId(SHARED_INTS);
const TRUE: ValueId = ValueId(SHARED_INTS + 1);
const FALSE: ValueId = ValueId(SHARED_INTS + 2);

impl<'a> Pickle<'a> {
    /// Reads the pickle that `bytes` starts with.
    pub fn read(bytes: &'a [u8], bounds: Bounds) -> Result<Pickle<'a>, PickleError> {
        let mut machine = Machine::new(bytes, bounds);
        loop {
            machine.at = machine.position;
            machine.name = "none";
            let byte = machine.byte()?;
            let Some(opcode) = Opcode::from_byte(byte) else {
                machine.name = "unknown";
                return Err(machine.wrong(format!(
                    "0x{byte:02x} is no opcode of protocols 2 to 5; the file is no pickle or is damaged"
                )));
            };
            machine.name = opcode.name();
            if let Some(root) = machine.step(opcode)? {
                return Ok(Pickle {
                    values: machine.values,
                    root,
                });
            }
        }
    }
}

struct Machine<'a> {
    bytes: &'a [u8],
    bounds: Bounds,
    position: usize,
    /// Where the current opcode is, and what it is called.
    at: usize,
    name: &'static str,
    values: Vec<Value<'a>>,
    stack: Vec<ValueId>,
    /// How high the stack was at each open mark.
    marks: Vec<usize>,
    memo: Vec<Option<ValueId>>,
}

impl<'a> Machine<'a> {
    fn new(bytes: &'a [u8], bounds: Bounds) -> Machine<'a> {
        let ints = (0..SHARED_INTS).map(|int| Value::Int(i64::from(int)));
        let constants = [Value::None, Value::Bool(true), Value::Bool(false)];
        Machine {
            bytes,
            bounds,
            position: 0,
            at: 0,
            name: "PROTO",
            values: ints.chain(constants).collect(),
            stack: Vec::new(),
            marks: Vec::new(),
            memo: Vec::new(),
        }
    }

    #[expect(
        clippy::too_many_lines,
        reason = "an arm for each opcode, as short as can be"
    )]
    fn step(&mut self, opcode: Opcode) -> Result<Option<ValueId>, PickleError> {
        match opcode {
            Opcode::PROTO => self.protocol()?,
            Opcode::FRAME => self.frame()?,
            Opcode::STOP => return self.stop().map(Some),
            Opcode::MARK => self.mark()?,
            Opcode::POP => self.discard()?,
            Opcode::POP_MARK => drop(self.since_mark()?),
            Opcode::DUP => {
                let top = self.top()?;
                self.stack.push(top);
            }
            Opcode::NONE => self.stack.push(NONE),
            Opcode::NEWTRUE => self.stack.push(TRUE),
            Opcode::NEWFALSE => self.stack.push(FALSE),
            Opcode::BININT => {
                let int = i32::from_le_bytes(self.array()?);
                self.int(i64::from(int))?;
            }
            Opcode::BININT1 => {
                let int = self.byte()?;
                self.int(i64::from(int))?;
            }
            Opcode::BININT2 => {
                let int = u16::from_le_bytes(self.array()?);
                self.int(i64::from(int))?;
            }
            Opcode::LONG1 => {
                let length = self.byte()?;
                self.long(usize::from(length))?;
            }
            Opcode::LONG4 => {
                let length = self.length4()?;
                self.long(length)?;
            }
            Opcode::BINFLOAT => {
                let float = f64::from_be_bytes(self.array()?);
                self.push(Value::Float(float))?;
            }
            // What Python 2 called a string; its snapshots would hold names, which are ASCII.
            Opcode::SHORT_BINUNICODE | Opcode::SHORT_BINSTRING => {
                let length = usize::from(self.byte()?);
                self.text(length)?;
            }
            Opcode::BINUNICODE | Opcode::BINSTRING => {
                let length = self.length4()?;
                self.text(length)?;
            }
            Opcode::BINUNICODE8 => {
                let length = self.length8()?;
                self.text(length)?;
            }
            Opcode::SHORT_BINBYTES => {
                let length = usize::from(self.byte()?);
                self.raw(length)?;
            }
            Opcode::BINBYTES => {
                let length = self.length4()?;
                self.raw(length)?;
            }
            Opcode::BINBYTES8 | Opcode::BYTEARRAY8 => {
                let length = self.length8()?;
                self.raw(length)?;
            }
            Opcode::EMPTY_LIST | Opcode::EMPTY_TUPLE | Opcode::EMPTY_SET => {
                self.push(Value::Sequence(Vec::new()))?;
            }
            Opcode::LIST | Opcode::TUPLE | Opcode::FROZENSET => {
                let parts = self.since_mark()?;
                self.push(Value::Sequence(parts))?;
            }
            Opcode::TUPLE1 => self.tuple(1)?,
            Opcode::TUPLE2 => self.tuple(2)?,
            Opcode::TUPLE3 => self.tuple(3)?,
            Opcode::APPEND => {
                let part = self.pop()?;
                self.extend(&[part])?;
            }
            Opcode::APPENDS | Opcode::ADDITEMS => {
                let parts = self.since_mark()?;
                self.extend(&parts)?;
            }
            Opcode::EMPTY_DICT => self.push(Value::Map(Vec::new()))?,
            Opcode::DICT => {
                let parts = self.since_mark()?;
                self.push(Value::Map(Vec::new()))?;
                self.set(&parts)?;
            }
            Opcode::SETITEM => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(&[key, value])?;
            }
            Opcode::SETITEMS => {
                let parts = self.since_mark()?;
                self.set(&parts)?;
            }
            Opcode::BINGET => {
                let index = usize::from(self.byte()?);
                self.get(index)?;
            }
            Opcode::LONG_BINGET => {
                let index = self.length4()?;
                self.get(index)?;
            }
            Opcode::BINPUT => {
                let index = usize::from(self.byte()?);
                self.put(index)?;
            }
            Opcode::LONG_BINPUT => {
                let index = self.length4()?;
                self.put(index)?;
            }
            Opcode::MEMOIZE => self.put(self.memo.len())?,
            Opcode::GLOBAL
            | Opcode::STACK_GLOBAL
            | Opcode::REDUCE
            | Opcode::BUILD
            | Opcode::INST
            | Opcode::OBJ
            | Opcode::NEWOBJ
            | Opcode::NEWOBJ_EX
            | Opcode::EXT1
            | Opcode::EXT2
            | Opcode::EXT4
            | Opcode::PERSID
            | Opcode::BINPERSID
            | Opcode::NEXT_BUFFER
            | Opcode::READONLY_BUFFER => {
                return Err(self.wrong(
                    "it imports or calls code, and nothing is executed here; expected plain \
                     containers, numbers and strings",
                ));
            }
            Opcode::INT
            | Opcode::LONG
            | Opcode::FLOAT
            | Opcode::STRING
            | Opcode::UNICODE
            | Opcode::GET
            | Opcode::PUT => {
                return Err(self.wrong("it belongs to protocol 0; expected protocols 2 to 5"));
            }
        }
        Ok(None)
    }

    fn protocol(&mut self) -> Result<(), PickleError> {
        match self.byte()? {
            2..=PROTOCOL => Ok(()),
            other => Err(self.wrong(format!("protocol {other}; expected 2 to {PROTOCOL}"))),
        }
    }

    /// A frame only says how much to read at once.
    fn frame(&mut self) -> Result<(), PickleError> {
        let length = self.length8()?;
        let left = self.bytes.len() - self.position;
        if length > left {
            return Err(self.wrong(format!(
                "a frame of {length} bytes where the file has {left} left; it is cut off"
            )));
        }
        Ok(())
    }

    fn stop(&mut self) -> Result<ValueId, PickleError> {
        if !self.marks.is_empty() || self.stack.len() != 1 {
            return Err(self.wrong(format!(
                "{} values and {} open containers are left; expected one value",
                self.stack.len(),
                self.marks.len()
            )));
        }
        self.pop()
    }

    fn mark(&mut self) -> Result<(), PickleError> {
        if self.marks.len() == self.bounds.depth {
            let depth = self.bounds.depth;
            return Err(self.wrong(format!(
                "more than {depth} containers inside each other; expected at most {depth}"
            )));
        }
        self.marks.push(self.stack.len());
        Ok(())
    }

    fn discard(&mut self) -> Result<(), PickleError> {
        if self.marks.last() == Some(&self.stack.len()) {
            self.marks.pop();
            return Ok(());
        }
        self.pop().map(drop)
    }

    fn int(&mut self, int: i64) -> Result<(), PickleError> {
        match u32::try_from(int) {
            Ok(small) if small < SHARED_INTS => {
                self.stack.push(ValueId(small));
                Ok(())
            }
            _ => self.push(Value::Int(int)),
        }
    }

    /// A two's complement number of any length, least significant byte first.
    fn long(&mut self, length: usize) -> Result<(), PickleError> {
        let digits = self.take(length)?;
        let negative = digits.last().is_some_and(|byte| byte & 0x80 != 0);
        if length > 9 || (length == 9 && digits[8] != 0) {
            return self.push(Value::Long);
        }
        let mut wide = [if negative { 0xff } else { 0 }; 8];
        let kept = length.min(8);
        wide[..kept].copy_from_slice(&digits[..kept]);
        let value = u64::from_le_bytes(wide);
        match i64::try_from(value) {
            Ok(int) if !negative => self.int(int),
            _ if negative => self.int(value.cast_signed()),
            _ => self.push(Value::Unsigned(value)),
        }
    }

    /// Python writes lone surrogates as if they were UTF-8; those become U+FFFD.
    fn text(&mut self, length: usize) -> Result<(), PickleError> {
        let text = String::from_utf8_lossy(self.take(length)?);
        self.push(Value::Text(text))
    }

    fn raw(&mut self, length: usize) -> Result<(), PickleError> {
        let bytes = self.take(length)?;
        self.push(Value::Bytes(bytes))
    }

    fn tuple(&mut self, length: usize) -> Result<(), PickleError> {
        let first = self.stack.len().checked_sub(length);
        match first.filter(|first| *first >= self.floor()) {
            Some(first) => {
                let parts = self.stack.split_off(first);
                self.push(Value::Sequence(parts))
            }
            None => Err(self.wrong(format!("expected {length} values before it"))),
        }
    }

    fn extend(&mut self, parts: &[ValueId]) -> Result<(), PickleError> {
        let target = self.top()?;
        match &mut self.values[target.0 as usize] {
            Value::Sequence(sequence) => {
                sequence.extend_from_slice(parts);
                Ok(())
            }
            other => {
                let kind = other.kind();
                Err(self.wrong(format!("it adds to {kind}; expected a list or a set")))
            }
        }
    }

    fn set(&mut self, parts: &[ValueId]) -> Result<(), PickleError> {
        if !parts.len().is_multiple_of(2) {
            return Err(self.wrong("a key without a value; expected pairs"));
        }
        let target = self.top()?;
        match &mut self.values[target.0 as usize] {
            Value::Map(map) => {
                map.extend(parts.chunks_exact(2).map(|pair| (pair[0], pair[1])));
                Ok(())
            }
            other => {
                let kind = other.kind();
                Err(self.wrong(format!("it sets a member of {kind}; expected a dict")))
            }
        }
    }

    fn get(&mut self, index: usize) -> Result<(), PickleError> {
        match self.memo.get(index).copied().flatten() {
            Some(id) => {
                self.stack.push(id);
                Ok(())
            }
            None => Err(self.wrong(format!(
                "it refers to value {index}, which was not remembered before"
            ))),
        }
    }

    fn put(&mut self, index: usize) -> Result<(), PickleError> {
        let top = self.top()?;
        // Picklers count up from zero; a gap this large would only waste memory.
        if index > self.memo.len() + 1024 {
            return Err(self.wrong(format!(
                "it remembers value {index} after {} others; expected the next number",
                self.memo.len()
            )));
        }
        if index >= self.memo.len() {
            self.room()?;
            self.memo.resize(index + 1, None);
        }
        self.memo[index] = Some(top);
        Ok(())
    }

    fn push(&mut self, value: Value<'a>) -> Result<(), PickleError> {
        self.room()?;
        let id = u32::try_from(self.values.len()).expect("the bound on values is below 2^32");
        self.values.push(value);
        self.stack.push(ValueId(id));
        Ok(())
    }

    fn room(&self) -> Result<(), PickleError> {
        let most = self.bounds.values.min(u32::MAX as usize);
        if self.values.len().max(self.memo.len()) >= most {
            return Err(self.wrong(format!("more than {most} values; expected at most {most}")));
        }
        Ok(())
    }

    /// Below this the stack belongs to an open container.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn top(&self) -> Result<ValueId, PickleError> {
        match self.stack.last() {
            Some(top) if self.stack.len() > self.floor() => Ok(*top),
            _ => Err(self.wrong("expected a value before it")),
        }
    }

    fn pop(&mut self) -> Result<ValueId, PickleError> {
        let top = self.top()?;
        self.stack.pop();
        Ok(top)
    }

    fn since_mark(&mut self) -> Result<Vec<ValueId>, PickleError> {
        match self.marks.pop() {
            Some(start) => Ok(self.stack.split_off(start)),
            None => Err(self.wrong("expected a MARK before it")),
        }
    }

    fn byte(&mut self) -> Result<u8, PickleError> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], PickleError> {
        let bytes = self.take(N)?;
        Ok(bytes.try_into().expect("that many were taken"))
    }

    fn length4(&mut self) -> Result<usize, PickleError> {
        let length = u32::from_le_bytes(self.array()?);
        Ok(usize::try_from(length).expect("an address has at least 32 bits"))
    }

    fn length8(&mut self) -> Result<usize, PickleError> {
        let length = u64::from_le_bytes(self.array()?);
        usize::try_from(length).map_err(|_| self.wrong(format!("a length of {length}")))
    }

    fn take(&mut self, length: usize) -> Result<&'a [u8], PickleError> {
        let left = &self.bytes[self.position..];
        match left.get(..length) {
            Some(bytes) => {
                self.position += length;
                Ok(bytes)
            }
            None => Err(self.wrong(format!(
                "expected {length} bytes where the file has {} left; it is cut off",
                left.len()
            ))),
        }
    }

    fn wrong(&self, problem: impl Into<String>) -> PickleError {
        PickleError {
            offset: self.at,
            opcode: self.name.to_owned(),
            problem: problem.into(),
        }
    }
}
