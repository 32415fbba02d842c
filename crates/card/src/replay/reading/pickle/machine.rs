//! The stack machine, as far as it builds plain data.

use super::PickleError;
use super::opcode::Opcode;
use super::value::{Container, LARGEST_FILE, Pickle, ValueId};

/// What a pickle may make its reader use. The size of the file is bounded where it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Memory besides the file, and never more than [`TIMES`] what the file has, beyond the first few MiB.
    pub bytes: usize,
    /// Containers that are open at once. PyTorch's snapshots nest six deep.
    pub depth: usize,
}

impl Default for Bounds {
    /// Enough for a snapshot of sixteen million events.
    fn default() -> Bounds {
        Bounds {
            bytes: 2 << 30,
            depth: 64,
        }
    }
}

/// So many times the size of its file a pickle may take. An event of PyTorch's takes 60 bytes in the file and 120 here; one byte can be
/// an empty container of a hundred.
const TIMES: usize = 8;

/// What any pickle may take.
const ANY: usize = 16 << 20;

/// The highest protocol there is.
const PROTOCOL: u8 = 5;

/// What a container takes besides its parts: its place in the list of containers, which grows to twice what it
/// needs, and two words of the allocator.
const CONTAINER: usize = 2 * size_of::<Container>() + 16;

/// What the memo has for numbers that were not given.
const NOT_GIVEN: ValueId = ValueId(u32::MAX);

impl<'a> Pickle<'a> {
    /// Reads the pickle that `bytes` starts with.
    pub fn read(bytes: &'a [u8], bounds: Bounds) -> Result<Pickle<'a>, PickleError> {
        let mut machine = Machine::new(bytes, bounds);
        if bytes.len() >= LARGEST_FILE {
            return Err(machine.wrong("a file of 2 GiB or more; expected less"));
        }
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
                    bytes,
                    containers: machine.containers,
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
    /// What may still be taken of [`Bounds::bytes`].
    left: usize,
    containers: Vec<Container>,
    stack: Vec<ValueId>,
    /// How high the stack was at each open mark.
    marks: Vec<usize>,
    memo: Vec<ValueId>,
}

impl<'a> Machine<'a> {
    fn new(bytes: &'a [u8], bounds: Bounds) -> Machine<'a> {
        let of_file = bytes.len().saturating_mul(TIMES).max(ANY);
        let bounds = Bounds {
            bytes: bounds.bytes.min(of_file),
            ..bounds
        };
        Machine {
            bytes,
            bounds,
            left: bounds.bytes,
            position: 0,
            at: 0,
            name: "PROTO",
            containers: Vec::new(),
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
                self.push(top)?;
            }
            Opcode::NONE | Opcode::NEWTRUE | Opcode::NEWFALSE => self.scalar(0)?,
            Opcode::BININT => self.scalar(4)?,
            Opcode::BININT1 => self.scalar(1)?,
            Opcode::BININT2 => self.scalar(2)?,
            Opcode::BINFLOAT => self.scalar(8)?,
            // SHORT_BINSTRING is what Python 2 called a string; its snapshots would hold names, which are ASCII.
            Opcode::LONG1
            | Opcode::SHORT_BINUNICODE
            | Opcode::SHORT_BINSTRING
            | Opcode::SHORT_BINBYTES => {
                let length = usize::from(self.byte()?);
                self.scalar(length)?;
            }
            Opcode::LONG4 | Opcode::BINUNICODE | Opcode::BINSTRING | Opcode::BINBYTES => {
                let length = self.length4()?;
                self.scalar(length)?;
            }
            Opcode::BINUNICODE8 | Opcode::BINBYTES8 | Opcode::BYTEARRAY8 => {
                let length = self.length8()?;
                self.scalar(length)?;
            }
            Opcode::EMPTY_LIST | Opcode::EMPTY_TUPLE | Opcode::EMPTY_SET => {
                self.open(Container::Sequence(Vec::new()))?;
            }
            Opcode::LIST | Opcode::TUPLE | Opcode::FROZENSET => {
                let parts = self.since_mark()?;
                self.open(Container::Sequence(parts))?;
            }
            Opcode::TUPLE1 => self.tuple(1)?,
            Opcode::TUPLE2 => self.tuple(2)?,
            Opcode::TUPLE3 => self.tuple(3)?,
            Opcode::APPEND => {
                let part = self.pop()?;
                self.extend(vec![part])?;
            }
            Opcode::APPENDS | Opcode::ADDITEMS => {
                let parts = self.since_mark()?;
                self.extend(parts)?;
            }
            Opcode::EMPTY_DICT => self.open(Container::Map(Vec::new()))?,
            Opcode::DICT => {
                let parts = self.since_mark()?;
                self.open(Container::Map(Vec::new()))?;
                self.set(parts)?;
            }
            Opcode::SETITEM => {
                let value = self.pop()?;
                let key = self.pop()?;
                self.set(vec![key, value])?;
            }
            Opcode::SETITEMS => {
                let parts = self.since_mark()?;
                self.set(parts)?;
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

    /// A value that stays in the file: so many more bytes belong to it.
    fn scalar(&mut self, length: usize) -> Result<(), PickleError> {
        self.take(length)?;
        self.push(ValueId::in_file(self.at))
    }

    fn tuple(&mut self, length: usize) -> Result<(), PickleError> {
        let first = self.stack.len().checked_sub(length);
        match first.filter(|first| *first >= self.floor()) {
            Some(first) => {
                let parts = self.stack.split_off(first);
                self.open(Container::Sequence(parts))
            }
            None => Err(self.wrong(format!("expected {length} values before it"))),
        }
    }

    fn open(&mut self, container: Container) -> Result<(), PickleError> {
        let (Container::Sequence(parts) | Container::Map(parts)) = &container;
        self.spend(CONTAINER + parts.capacity() * size_of::<ValueId>())?;
        let id = ValueId::of_container(self.containers.len());
        self.containers.push(container);
        self.push(id)
    }

    fn extend(&mut self, parts: Vec<ValueId>) -> Result<(), PickleError> {
        let target = self.top()?;
        match target
            .container()
            .map(|number| &mut self.containers[number])
        {
            Some(Container::Sequence(sequence)) => {
                let grown = join(sequence, parts);
                self.spend(grown)
            }
            Some(Container::Map(_)) => {
                Err(self.wrong("it adds to a dict; expected a list or a set"))
            }
            None => Err(self.wrong("it adds to no container; expected a list or a set")),
        }
    }

    fn set(&mut self, parts: Vec<ValueId>) -> Result<(), PickleError> {
        if !parts.len().is_multiple_of(2) {
            return Err(self.wrong("a key without a value; expected pairs"));
        }
        let target = self.top()?;
        match target
            .container()
            .map(|number| &mut self.containers[number])
        {
            Some(Container::Map(map)) => {
                let grown = join(map, parts);
                self.spend(grown)
            }
            Some(Container::Sequence(_)) => {
                Err(self.wrong("it sets a member of a list; expected a dict"))
            }
            None => Err(self.wrong("it sets a member of no container; expected a dict")),
        }
    }

    fn get(&mut self, index: usize) -> Result<(), PickleError> {
        match self.memo.get(index).copied().filter(|id| *id != NOT_GIVEN) {
            Some(id) => self.push(id),
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
            let before = self.memo.capacity();
            self.memo.resize(index + 1, NOT_GIVEN);
            self.spend((self.memo.capacity() - before) * size_of::<ValueId>())?;
        }
        self.memo[index] = top;
        Ok(())
    }

    fn push(&mut self, id: ValueId) -> Result<(), PickleError> {
        let before = self.stack.capacity();
        self.stack.push(id);
        self.spend((self.stack.capacity() - before) * size_of::<ValueId>())
    }

    fn spend(&mut self, bytes: usize) -> Result<(), PickleError> {
        if let Some(left) = self.left.checked_sub(bytes) {
            self.left = left;
            return Ok(());
        }
        let most = self.bounds.bytes >> 10;
        Err(self.wrong(format!(
            "what it holds takes more than {most} KiB; expected at most that"
        )))
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

/// Adds parts to others, and says by how many bytes they grew. Lists that are made at once take what they need.
fn join(parts: &mut Vec<ValueId>, mut added: Vec<ValueId>) -> usize {
    let before = parts.capacity();
    if before == 0 {
        *parts = added;
    } else {
        parts.append(&mut added);
    }
    (parts.capacity() - before) * size_of::<ValueId>()
}
